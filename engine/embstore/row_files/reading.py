"""Puts rows from files into a table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from embstore.checkpoint.arguments import PathLike, directory_path
from embstore.errors import InvalidArgumentError, StorageError
from embstore.files import reading_from
from embstore.row_files.columns import Columns, ColumnsToRead, RowFile, columns_to_read
from embstore.row_files.parquet import ParquetRows
from embstore.row_files.safetensors import SafetensorsRows
from embstore.table import checks
from embstore.table.variable_arguments import check_variable
from embstore.variable import ROWS_PER_CHUNK, EmbeddingVariable

__all__ = ["read_rows", "row_files"]

_READERS: dict[str, Callable[[Path], RowFile]] = {
    ".parquet": ParquetRows,
    ".safetensors": SafetensorsRows,
}
_MAX_FREQ_OF_A_PUT = np.uint32(2**32 - 1)


def read_rows(path: PathLike, variable: EmbeddingVariable, *, slots: bool = True) -> int:
    """Puts the rows of files into a table (`EmbeddingVariable.put`); returns the number of rows.

    path: a folder with files of `embstore.write_rows`, or of another program; or one such file.
        Each must have the columns keys (int64) and values (dim float32 per entry), and may have
        freqs (default: 1) and versions (default: 0).
    slots: True: the files must have the slots of the table's optimizer as columns, and no other
        columns. False: only the weights are read; rows keep their slots, and new rows get initial
        slots.

    At most 65,536 rows are in memory at a time. The columns of all files are checked before the
    first row is put. Existing rows are set to the values, and their frequencies grow by freqs;
    freqs above 2**32 - 1 count as 2**32 - 1. Rows that were put before an error stay.

    Raises InvalidArgumentError, MissingLibraryError (`pip install 'embstore[files]'`) and
    StorageError, and the errors of `EmbeddingVariable.put`.
    """
    variable = check_variable(variable)
    with_slots = checks.flag("slots", slots)
    folder = directory_path(path)
    to_read: dict[Path, ColumnsToRead] = {}
    for file, opened in row_files(folder):
        to_read[file] = columns_to_read(file, opened.columns, variable, slots=with_slots)
    rows = 0
    for file, opened in row_files(folder):
        for columns in opened.chunks(to_read[file].columns, ROWS_PER_CHUNK):
            try:
                _put(variable, columns, to_read[file])
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{file}: {error}") from error
            rows += columns["keys"].size
    return rows


def row_files(path: Path) -> Iterator[tuple[Path, RowFile]]:
    """Yields the files of rows in a folder, or the file `path`, each open until the next one.

    Raises InvalidArgumentError, MissingLibraryError and StorageError.
    """
    for file in _files_at(path):
        with contextlib.closing(_READERS[file.suffix](file)) as opened:
            yield file, opened


def _files_at(path: Path) -> list[Path]:
    kinds = " or ".join(_READERS)
    with reading_from(path):
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix in _READERS)
            if not found:
                raise StorageError(f"{path}: has no file that ends with {kinds}")
            return found
        if not path.exists():
            raise StorageError(f"{path}: there is no such file or folder")
    if path.suffix not in _READERS:
        raise InvalidArgumentError(
            f"path must be a folder, or a file that ends with {kinds}, got {path}"
        )
    return [path]


def _put(variable: EmbeddingVariable, columns: Columns, to_read: ColumnsToRead) -> None:
    """Puts rows into the variable, with one `put` for each version."""
    keys = columns["keys"]
    if not keys.size:
        return
    versions = columns.get("versions", np.zeros(keys.size, np.int64))
    if versions.dtype.kind not in "iu":
        raise InvalidArgumentError(f"versions must be integers, got {versions.dtype}")
    freqs = columns.get("freqs")
    if freqs is not None and freqs.dtype.kind in "iu":
        freqs = np.minimum(freqs, _MAX_FREQ_OF_A_PUT)  # tables count further than one put() may
    order = np.argsort(versions, kind="stable")
    distinct, begins = np.unique(versions[order], return_index=True)
    for version in (distinct[0], distinct[-1]):  # checks all versions before any row is put
        checks.integer("versions", int(version), at_least=0)
    for version, where in zip(distinct, np.split(order, begins[1:]), strict=True):
        variable.put(
            keys[where],
            columns["values"][where],
            slots=None if to_read.slots is None else {n: columns[n][where] for n in to_read.slots},
            freqs=None if freqs is None else freqs[where],
            version=int(version),
        )
