"""The tables of all sessions of this process, by number.

A TensorFlow variable holds a table's number, so each session has the tables that it initialized, as
it has its own values of other variables.
"""

from __future__ import annotations

import itertools
import threading

from embstore.errors import InvalidArgumentError
from embstore.variable import EmbeddingVariable

__all__ = ["NO_TABLE", "add_table", "close_table", "table_of"]

NO_TABLE = 0

_numbers = itertools.count(1)
_tables: dict[int, EmbeddingVariable] = {}
_lock = threading.Lock()


def add_table(table: EmbeddingVariable) -> int:
    with _lock:
        number = next(_numbers)
        _tables[number] = table
    return number


def table_of(number: int) -> EmbeddingVariable:
    with _lock:
        table = _tables.get(number)
    if table is None:
        raise InvalidArgumentError(
            "the table was closed, with the session that made it or by another initialization; "
            "run the variable's initializer in this session"
        )
    return table


def close_table(number: int) -> None:
    """Closes the table. Does nothing if it is closed already, or NO_TABLE."""
    with _lock:
        table = _tables.pop(number, None)
    if table is not None:
        table.close()
