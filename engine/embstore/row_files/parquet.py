"""Rows in Parquet files. Weights and slots are columns of lists of floats."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError, MissingLibraryError, StorageError
from embstore.row_files.columns import LISTS_OF_ANY_LENGTH, Columns

__all__ = ["ParquetRows", "write"]


def _library() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibraryError(
            "Parquet files need pyarrow, which isn't installed; get it with: "
            "pip install 'embstore[files]'"
        ) from error
    return pyarrow, pyarrow.parquet


def write(path: Path, columns: Columns, notes: Mapping[str, str]) -> None:
    arrow, parquet = _library()

    def as_arrow(column: NDArray[Any]) -> Any:
        entries = arrow.array(column.reshape(-1))
        if column.ndim == 1:
            return entries
        return arrow.FixedSizeListArray.from_arrays(entries, column.shape[1])

    table = arrow.table({name: as_arrow(column) for name, column in columns.items()})
    described = table.replace_schema_metadata(dict(notes))
    parquet.write_table(described, path, write_page_checksum=True)


@contextlib.contextmanager
def _readable(path: Path, arrow: Any) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: can't be read as Parquet: {error}") from error


class ParquetRows:
    """A Parquet file of rows. The length of a column's lists is that of its first list, unless the
    schema has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow, parquet = _library()
        with _readable(path, self._arrow):
            self._file = parquet.ParquetFile(path, page_checksum_verification=True)
            names = self._file.schema_arrow.names
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"{path}: has several columns of one name: {names}")
        self.columns: dict[str, tuple[int, ...]] = {
            field.name: self._shape_of(field) for field in self._file.schema_arrow
        }

    def _shape_of(self, field: Any) -> tuple[int, ...]:
        types = self._arrow.types
        if types.is_fixed_size_list(field.type):
            return (field.type.list_size,)
        if types.is_list(field.type) or types.is_large_list(field.type):
            first = next(self.chunks((field.name,), 1), None)
            return LISTS_OF_ANY_LENGTH if first is None else first[field.name].shape[1:]
        return ()

    def chunks(self, names: tuple[str, ...], rows: int) -> Iterator[Columns]:
        with _readable(self._path, self._arrow):
            for batch in self._file.iter_batches(batch_size=rows, columns=list(names)):
                yield {name: self._array(name, batch.column(name)) for name in names}

    def close(self) -> None:
        self._file.close()

    def _array(self, name: str, column: Any) -> NDArray[Any]:
        """Returns a column as an array: (n,), or (n, length) for lists."""
        types = self._arrow.types
        is_list = types.is_nested(column.type)
        if types.is_struct(column.type) or types.is_map(column.type):
            raise InvalidArgumentError(
                f"{self._path}: an entry of {name} is a {column.type}; it must be a number, or a "
                "list of numbers"
            )
        entries = column.flatten() if is_list else column
        if column.null_count or entries.null_count:
            raise InvalidArgumentError(f"{self._path}: {name} has entries that are null")
        array = np.asarray(entries.to_numpy(zero_copy_only=False))
        if not is_list:
            return array
        if not types.is_fixed_size_list(column.type):
            lengths = np.diff(column.offsets.to_numpy())
            if (lengths != lengths[:1]).any():
                raise InvalidArgumentError(f"{self._path}: {name} has lists of several lengths")
        return array.reshape(len(column), array.size // max(1, len(column)))
