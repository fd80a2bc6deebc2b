"""Where a saved model lies, by the name that it was given.

NAME.keras or NAME.weights.h5 is a file as Keras knows it. Any other name is a folder: the model's
file without rows, and the rows as `exb.save_server_model` keeps them. That is also the way of
NAME.keras once that function was replaced; the rows then lie in NAME.keras.openembedding.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embstore.checkpoint.directories import sync
from embstore.errors import InvalidArgumentError, StorageError

__all__ = ["ModelFiles", "being_saved", "is_keras_file", "saved"]

WHOLE, WEIGHTS = "model.keras", "model.weights.h5"
_ROWS = "openembedding"
_OF_A_FOLDER = {WHOLE, WEIGHTS, _ROWS}
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
    path = Path(filepath)
    if is_keras_file(path):
        rows = _beside(path)
        return ModelFiles(path, rows if rows.is_dir() else None)
    folder = path.parent.parent if path.parts[-2:] == _IN_SAVED_MODEL else path
    for name in (WHOLE, WEIGHTS):
        if (folder / name).is_file():
            return ModelFiles(folder / name, folder / _ROWS)
    raise StorageError(f"{path}: no model was saved there: there's neither {WHOLE} nor {WEIGHTS}")


@contextlib.contextmanager
def being_saved(
    filepath: PathLike, file_name: str, *, overwrite: bool, rows_apart: bool
) -> Iterator[ModelFiles]:
    """Where to write a model that has the name `filepath` when the scope ends well: what that name
    had before is replaced then, as a whole where it's a folder.

    file_name: of Keras's file in a folder.
    """
    path = Path(filepath).absolute()
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
            _sync_file(files.file)
            _put(files.rows, _beside(path))
            _put(files.file, path)
        else:
            _refuse_strange(path)
            files = ModelFiles(fresh / file_name, fresh / _ROWS)
            yield files
            _sync_file(files.file)
            sync(fresh)
            _put(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_ROWS}")


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


def _put(what: Path | None, path: Path) -> None:
    """`what` takes the name, None that nothing does; what had it goes."""
    old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.replaced")
    if path.is_dir():
        path.rename(old)
    if what is not None:
        what.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)  # of a folder too: zipped=False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
