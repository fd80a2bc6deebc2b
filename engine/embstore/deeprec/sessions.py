"""Has sessions close the tables that were made in them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec.tables import NO_TABLE, close_table
from embstore.deeprec.tensorflow_inside import is_open_here, session_module
from embstore.deeprec.variable import EmbeddingVariable, variables_of

__all__ = ["close_tables_with_sessions", "table_numbers"]


def close_tables_with_sessions() -> None:
    """Has a session's `close()`, which the end of its `with` block calls, close its tables too."""
    close_session = session_module.BaseSession.close

    @functools.wraps(close_session)
    def close(session: Any) -> None:
        numbers: list[int] = []
        try:
            numbers = _tables_of_open_session(session)
        finally:
            close_session(session)
            for number in numbers:
                close_table(number)

    session_module.BaseSession.close = close


def table_numbers(session: Any, variables: Sequence[EmbeddingVariable]) -> list[int]:
    """Returns each variable's table number in the session; NO_TABLE if it isn't initialized."""
    if not variables:
        return []
    return [int(number) for number in session.run([each.table_number for each in variables])]


def _tables_of_open_session(session: Any) -> list[int]:
    if not is_open_here(session):
        return []
    try:
        numbers = table_numbers(session, variables_of(session.graph))
    except (tf.errors.OpError, RuntimeError):  # the session is broken
        return []
    return [number for number in numbers if number != NO_TABLE]
