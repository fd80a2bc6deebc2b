"""Writes the rows of a table into files for other programs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from embstore._core import PathLock
from embstore.checkpoint.arguments import PathLike, directory_path
from embstore.checkpoint.persist.earlier_runs import check_none_awaits_restore
from embstore.errors import InUseError, StorageError
from embstore.files import make_directory, rename, sync, writing_to
from embstore.row_files import parquet, safetensors
from embstore.row_files.columns import Columns
from embstore.table import checks
from embstore.table.variable_arguments import check_variable
from embstore.variable import EmbeddingVariable, OnDamage

__all__ = ["write_rows"]

_ROWS_PER_FILE = 1 << 17
_WRITERS = {"parquet": parquet.write, "safetensors": safetensors.write}


def write_rows(
    path: PathLike,
    variable: EmbeddingVariable,
    *,
    file_format: str = "parquet",
    first_key: int = checks.INT64_MIN,
    last_key: int = checks.INT64_MAX,
    rows_a_file: int = _ROWS_PER_FILE,
    on_damage: OnDamage = "raise",
) -> int:
    """Writes a table's rows into files for other programs; returns the number of rows.

    path: a new folder for the files, rows-00000.parquet and so on, at least one; its parent must
        exist. The folder gets its name once all files are durable.
    file_format: "parquet" or "safetensors". The columns of each file, and the order of all rows,
        are those of `EmbeddingVariable.export`; in Parquet weights and slots are lists of float.
    first_key, last_key: the range of keys, both included.
    rows_a_file: greatest number of rows in a file. Memory has the rows of one file, up to five
        times while it is written, and the keys of the range.
    on_damage: as in `EmbeddingVariable.export`.

    If the table is trained meanwhile, each file has its rows as of a moment of its own
    (`EmbeddingVariable.export_in_chunks`). `embstore.read_rows` puts the rows into a table. The
    files are no checkpoint: `embstore.save` also keeps everything else of a table.

    Raises InvalidArgumentError, MissingLibraryError (`pip install 'embstore[files]'`), StorageError
    (InUseError if another call is writing the folder; also for a variable that awaits its restore)
    and DamagedRowsError.
    """
    variable = check_variable(variable)
    check_none_awaits_restore([variable])
    write = _WRITERS[checks.choice("file_format", file_format, list(_WRITERS))]
    most = checks.integer("rows_a_file", rows_a_file, at_least=1)
    chunks = variable.export_in_chunks(
        most, first_key=first_key, last_key=last_key, on_damage=on_damage
    )
    rule = "none" if variable.optimizer is None else variable.optimizer.name
    notes = {"embstore_variable": variable.name, "embstore_optimizer": rule}
    rows = 0
    with _new_folder(directory_path(path)) as unfinished:

        def write_file(number: int, columns: Columns) -> None:
            file = unfinished / f"rows-{number:05}.{file_format}"
            write(file, columns, notes)
            sync(file)

        for number, columns in enumerate(chunks):
            write_file(number, columns)
            rows += columns["keys"].size
            del columns  # frees them before the next chunk is made
        if rows == 0:
            write_file(0, _no_rows(variable))  # a folder without a file couldn't be read
    return rows


def _no_rows(variable: EmbeddingVariable) -> Columns:
    """Returns the columns of a table without rows, as `EmbeddingVariable.export` does."""
    counts, rows = np.zeros(0, np.int64), np.zeros((0, variable.dim), np.float32)
    slots = () if variable.optimizer is None else variable.optimizer.slots
    columns: Columns = {"keys": counts, "values": rows, "freqs": counts, "versions": counts}
    return columns | dict.fromkeys(slots, rows)


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yields a hidden folder beside `folder`, which is renamed to `folder` on leaving, or removed
    after an error.
    """
    if not folder.name:
        raise StorageError(f"path: {folder} is where all folders are; give a new folder")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    with _only_writer(folder), writing_to(folder):
        if folder.exists():
            raise StorageError(f"path: {folder} exists already; give a new folder")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that died
            make_directory(unfinished)
            yield unfinished
            sync(unfinished)
            rename(unfinished, folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """A scope in which no other call writes the folder. Raises InUseError and StorageError."""
    with writing_to(folder):
        if not folder.parent.is_dir():
            raise StorageError(
                f"path: {folder} can't be made, because {folder.parent} doesn't exist"
            )
    lock_file = folder.with_name(f".{folder.name}.unfinished.lock")
    try:
        lock = PathLock(str(lock_file), str(folder))
    except InUseError:
        raise InUseError(
            f"path: {folder} is being written already; wait for that, or give another folder"
        ) from None
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)  # while locked, else it could be the next writer's file
        lock.release()
