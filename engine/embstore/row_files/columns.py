"""The columns of a file of rows, and the check that they fit a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore.variable import EmbeddingVariable

__all__ = ["LISTS_OF_ANY_LENGTH", "Columns", "ColumnsToRead", "RowFile", "columns_to_read"]

Columns: TypeAlias = "dict[str, NDArray[Any]]"  # by their names in `export()`

_COMMON_COLUMNS = ("keys", "values", "freqs", "versions")
LISTS_OF_ANY_LENGTH = (0,)  # stands for the shape of an entry in a file without rows


class RowFile(Protocol):
    """An open file of rows."""

    @property
    def columns(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of an entry of each column: (), (dim,) or LISTS_OF_ANY_LENGTH."""
        ...

    def chunks(self, names: tuple[str, ...], rows: int) -> Iterator[Columns]:
        """Yields these columns of all rows, in order, at most `rows` rows at a time."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ColumnsToRead:
    """The columns to read from a file."""

    columns: tuple[str, ...]
    slots: tuple[str, ...] | None  # None: rows keep their own


def columns_to_read(
    path: Path, columns: Mapping[str, tuple[int, ...]], variable: EmbeddingVariable, *, slots: bool
) -> ColumnsToRead:
    """Returns the columns to read. Raises InvalidArgumentError if they don't fit the variable."""
    for name in ("keys", "values"):
        if name not in columns:
            raise InvalidArgumentError(
                f"{path}: has no column {name}, only {', '.join(columns) or 'none at all'}"
            )
    has_slots = slots and variable.optimizer is not None
    names = variable.optimizer.slots if has_slots and variable.optimizer is not None else ()
    others = [name for name in columns if name not in _COMMON_COLUMNS]
    if slots and set(others) != set(names):
        raise InvalidArgumentError(
            f"{path}: beside weights it has {', '.join(others) or 'nothing'}, but {variable.name} "
            f"keeps {', '.join(names) or 'nothing'}; slots=False reads the weights alone"
        )
    counts = tuple(name for name in ("freqs", "versions") if name in columns)
    names_to_read = ("keys", "values", *counts, *names)
    for name in names_to_read:
        shape = () if name in ("keys", *counts) else (variable.dim,)
        if columns[name] not in (shape, LISTS_OF_ANY_LENGTH):
            raise InvalidArgumentError(
                f"{path}: an entry of {name} has the shape {columns[name]}, and one of "
                f"{variable.name} has {shape}"
            )
    return ColumnsToRead(names_to_read, tuple(names) if has_slots else None)
