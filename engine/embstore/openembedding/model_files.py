"""Finds the files of a saved model from the name that it was saved under.

NAME.keras or NAME.weights.h5 is a file in Keras's format. Any other name is a folder with the
model's file without rows, and the rows as `exb.save_server_model` keeps them. If that function was
replaced, NAME.keras is without rows too, and the rows are in NAME.keras.openembedding.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embstore.checkpoint.arguments import directory_path
from embstore.errors import InvalidArgumentError, StorageError
from embstore.files import sync

__all__ = ["ModelFiles", "is_keras_file", "saved_model_files", "saving_model"]

WHOLE, WEIGHTS = "model.keras", "model.weights.h5"
_ROWS = "openembedding"
_MODEL_FILE_NAMES = {WHOLE, WEIGHTS, _ROWS}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of <fcntl.h> and <linux/fs.h>
_IN_SAVED_MODEL = ("variables", "variables")  # where TensorFlow 2 had a SavedModel's weights

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class ModelFiles:
    """A saved model's files. file: Keras's. rows: the rows' folder; None: they are in the file."""

    file: Path
    rows: Path | None


def is_keras_file(filepath: PathLike) -> bool:
    return os.fspath(filepath).endswith((".keras", ".weights.h5"))


def saved_model_files(filepath: PathLike) -> ModelFiles:
    """Returns the files of the model that was saved under that name. NAME/variables/variables,
    which examples of OpenEmbedding use, means NAME.
    """
    path = directory_path(filepath, "filepath")
    if path.parts[-2:] == _IN_SAVED_MODEL and not is_keras_file(path):
        path = path.parent.parent
    path = path.resolve()
    if is_keras_file(path):
        rows = _present_path(_rows_folder_of(path))
        return ModelFiles(path, rows if rows.is_dir() else None)
    folder = _present_path(path)
    for name in (WHOLE, WEIGHTS):
        if (folder / name).is_file():
            return ModelFiles(folder / name, folder / _ROWS)
    raise StorageError(f"{path}: no model was saved there: there's neither {WHOLE} nor {WEIGHTS}")


@contextlib.contextmanager
def saving_model(
    filepath: PathLike, file_name: str, *, overwrite: bool, rows_apart: bool
) -> Iterator[ModelFiles]:
    """Yields the files to write a model to. When the block ends without an error, they replace the
    model that was saved as `filepath`, as a whole if it is a folder. If that name is a link, its
    target is replaced.

    file_name: of Keras's file in a folder.
    """
    path = directory_path(filepath, "filepath").resolve()
    _refuse_working_directory(path)
    for name in (path, _rows_folder_of(path)) if is_keras_file(path) else (path,):
        _remove_leftovers(name)
    if path.exists() and not overwrite:
        raise InvalidArgumentError(f"filepath: {path} exists; give another, or overwrite=True")
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}.unfinished")
    try:
        fresh.mkdir()
    except OSError as error:
        raise StorageError(f"{path}: can't be written: {error.strerror}") from error
    try:
        if is_keras_file(path):
            files = ModelFiles(fresh / path.name, fresh / _ROWS if rows_apart else None)
            yield files
            sync(files.file)
            rows = _rows_folder_of(path)
            if files.rows is not None:
                _replace(files.rows, rows)
            elif rows.is_dir():
                rows.rename(fresh / _ROWS)  # and is deleted with it
            _replace(files.file, path)
        else:
            _refuse_folder_with_other_files(path)
            files = ModelFiles(fresh / file_name, fresh / _ROWS)
            yield files
            sync(files.file)
            sync(fresh)
            _replace(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _rows_folder_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_ROWS}")


def _refuse_working_directory(path: Path) -> None:
    try:
        working_directory = Path.cwd()
    except FileNotFoundError:  # the folder was removed
        working_directory = Path("/")
    if path in (working_directory, *working_directory.parents):
        raise InvalidArgumentError(
            f"filepath: {path} is the folder that this program works in, or one above it, and "
            "would be replaced by the model; give the name of a folder in it"
        )


def _refuse_folder_with_other_files(path: Path) -> None:
    """Raises InvalidArgumentError for a folder with other files, which would be lost."""
    if not path.exists():
        return
    held = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    if strange := sorted(held - _MODEL_FILE_NAMES):
        raise InvalidArgumentError(
            f"filepath: {path} holds {strange[0]}, which is no part of a saved model and would be "
            "lost; give another name"
        )


def _replace(source: Path, path: Path) -> None:
    """Gives `source` the name `path`. A folder with that name takes the old name of `source`."""
    if not path.is_dir():
        source.rename(path)
    elif not _exchange(source, path):
        _exchange_in_steps(source, path)
    sync(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step. Returns False, with nothing changed, if the file system or
    the C library doesn't support that.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _exchange_in_steps(source: Path, path: Path) -> None:
    """Exchanges as `_exchange`. If it is killed, `path` may be missing: see `_present_path`."""
    old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.replaced")
    try:
        path.rename(old)
        source.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    with contextlib.suppress(OSError):  # the model is saved; the next save removes the old one
        old.rename(source)


def _replaced_folders(path: Path) -> list[Path]:
    """Returns the folders that killed saves of `path` had put aside, the newest last."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.replaced")
    try:
        found = [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)]
        return sorted(found, key=lambda entry: entry.lstat().st_mtime_ns)
    except OSError:  # there is no such folder, or a save has just ended
        return []


def _present_path(path: Path) -> Path:
    """Returns the path of the folder of that name. If a save put the folder aside, returns its
    present path and doesn't rename it: the save may still be under way.
    """
    if path.exists() or not (replaced := _replaced_folders(path)):
        return path
    return replaced[-1]


def _remove_leftovers(path: Path) -> None:
    """Gives a folder that a killed save put aside its name back, and removes older ones."""
    replaced = _replaced_folders(path)
    if replaced and not path.exists():
        with contextlib.suppress(OSError):  # then the save fails too, and raises
            replaced.pop().rename(path)
    for entry in replaced:
        shutil.rmtree(entry, ignore_errors=True)
