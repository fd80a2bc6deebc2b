"""Where a saved model lies, by the name that it was given.

NAME.keras or NAME.weights.h5 is a file as Keras knows it. Any other name is a folder: the model's
file without rows, and the rows as `exb.save_server_model` keeps them. That is also the way of
NAME.keras once that function was replaced; the rows then lie in NAME.keras.openembedding.
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

__all__ = ["ModelFiles", "being_saved", "is_keras_file", "saved"]

WHOLE, WEIGHTS = "model.keras", "model.weights.h5"
_ROWS = "openembedding"
_OF_A_FOLDER = {WHOLE, WEIGHTS, _ROWS}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of <fcntl.h> and <linux/fs.h>
_IN_SAVED_MODEL = ("variables", "variables")  # where TensorFlow 2 had a SavedModel's weights

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class ModelFiles:
    """file: what Keras writes and reads. rows: the rows' folder; None: they are in the file."""

    file: Path
    rows: Path | None


def is_keras_file(filepath: PathLike) -> bool:
    return os.fspath(filepath).endswith((".keras", ".weights.h5"))


def saved(filepath: PathLike) -> ModelFiles:
    """The model that was saved by that name, or, as examples of OpenEmbedding have it, by what is
    left of NAME/variables/variables.
    """
    path = directory_path(filepath, "filepath")
    if path.parts[-2:] == _IN_SAVED_MODEL and not is_keras_file(path):
        path = path.parent.parent
    path = path.resolve()
    if is_keras_file(path):
        rows = _held(_beside(path))
        return ModelFiles(path, rows if rows.is_dir() else None)
    folder = _held(path)
    for name in (WHOLE, WEIGHTS):
        if (folder / name).is_file():
            return ModelFiles(folder / name, folder / _ROWS)
    raise StorageError(f"{path}: no model was saved there: there's neither {WHOLE} nor {WEIGHTS}")


@contextlib.contextmanager
def being_saved(
    filepath: PathLike, file_name: str, *, overwrite: bool, rows_apart: bool
) -> Iterator[ModelFiles]:
    """Where to write a model that has the name `filepath` when the scope ends well: what that name
    had before is replaced then, as a whole where it's a folder. Where the name is a link, what it
    points to is replaced.

    file_name: of Keras's file in a folder.
    """
    path = directory_path(filepath, "filepath").resolve()
    _refuse_working_directory(path)
    for name in (path, _beside(path)) if is_keras_file(path) else (path,):
        _settle(name)
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
            rows = _beside(path)
            if files.rows is not None:
                _put(files.rows, rows)
            elif rows.is_dir():
                rows.rename(fresh / _ROWS)  # and goes with it
            _put(files.file, path)
        else:
            _refuse_strange(path)
            files = ModelFiles(fresh / file_name, fresh / _ROWS)
            yield files
            sync(files.file)
            sync(fresh)
            _put(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_ROWS}")


def _refuse_working_directory(path: Path) -> None:
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        here = Path("/")
    if path in (here, *here.parents):
        raise InvalidArgumentError(
            f"filepath: {path} is the folder that this program works in, or one above it, and "
            "would be replaced by the model; give the name of a folder in it"
        )


def _refuse_strange(path: Path) -> None:
    """A folder of something else isn't replaced."""
    if not path.exists():
        return
    held = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    if strange := sorted(held - _OF_A_FOLDER):
        raise InvalidArgumentError(
            f"filepath: {path} holds {strange[0]}, which is no part of a saved model and would be "
            "lost; give another name"
        )


def _put(what: Path, path: Path) -> None:
    """`what` takes the name; a folder that had it goes to where `what` was."""
    if not path.is_dir():
        what.rename(path)
    elif not _exchange(what, path):
        _exchange_in_steps(what, path)
    sync(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step. Returns False where the file system or the C library can't:
    nothing has changed then.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _exchange_in_steps(what: Path, path: Path) -> None:
    """As `_exchange`. If it is killed, `path` may be missing: see `_held` and `_settle`."""
    old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.replaced")
    try:
        path.rename(old)
        what.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    with contextlib.suppress(OSError):  # it's saved; the next save removes what stays
        old.rename(what)


def _replaced(path: Path) -> list[Path]:
    """The folders that saves of `path` put aside and left there when they were killed, newest
    last.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.replaced")
    try:
        found = [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)]
        return sorted(found, key=lambda entry: entry.lstat().st_mtime_ns)
    except OSError:  # there is no such folder, or a save has just ended
        return []


def _held(path: Path) -> Path:
    """Returns where the folder of that name lies. A folder that was put aside is read there, and
    not renamed: the save may still be under way.
    """
    if path.exists() or not (replaced := _replaced(path)):
        return path
    return replaced[-1]


def _settle(path: Path) -> None:
    """Gives a folder that a killed save put aside its name back, and removes older ones."""
    replaced = _replaced(path)
    if replaced and not path.exists():
        with contextlib.suppress(OSError):  # then nothing can be saved either, which tells
            replaced.pop().rename(path)
    for entry in replaced:
        shutil.rmtree(entry, ignore_errors=True)
