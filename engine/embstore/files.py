"""Reads and writes files and folders. Each function says what is durable on return, and each error
names the file that the system refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from embstore.errors import CheckpointError, StorageError

__all__ = [
    "make_directory",
    "opened",
    "read_file",
    "reading_from",
    "rename",
    "replace_file",
    "sync",
    "writing_to",
]


@contextlib.contextmanager
def reading_from(path: Path) -> Iterator[None]:
    """Raises the OSErrors of its scope as StorageError, which names the file, else `path`.
    FileNotFoundError and NotADirectoryError pass unchanged.
    """
    try:
        yield
    except (StorageError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: can't be read: {error.strerror or error}"
        ) from error


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Raises the OSErrors of its scope as StorageError, which names the file, else `path`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: can't be written: {error.strerror or error}"
        ) from error


def read_file(path: Path) -> bytes:
    """Returns the bytes of a file, which need not be trusted. Raises OSError, and CheckpointError
    if `path` is not a regular file: reading a FIFO could block for ever, and a device may have no
    end.
    """
    with opened(path) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path}: is not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()


def make_directory(path: Path, argument: str = "path") -> None:
    """Makes a directory unless it exists; its name is durable on return. Raises StorageError, which
    names the argument.
    """
    # Makes only the last part of the path: making its parents too would silently turn a mistyped
    # path or an unmounted device into an ordinary directory.
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise StorageError(f"{argument}: {path} is a file; give a directory") from None
    except OSError as error:
        why = f": {error.strerror}"
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            why = f", because {path.parent} doesn't exist"
        raise StorageError(f"{argument}: {path} can't be made{why}") from error
    else:
        with writing_to(path.parent):
            sync(path.parent)


def rename(old: Path, new: Path) -> None:
    """Renames a file or directory. The new name is durable on return; if an error is raised, the
    old name stays.
    """
    old.rename(new)
    try:
        sync(new.parent)
    except OSError:
        new.rename(old)
        raise


def replace_file(path: Path, text: bytes) -> None:
    """Replaces a file's contents atomically. They are durable on return; if StorageError is raised,
    the old file stays.
    """
    unfinished = path.with_name(f"{path.name}.new")
    with writing_to(path):
        unfinished.write_bytes(text)
        sync(unfinished)
        unfinished.rename(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's contents, or a directory's names, durable (fsync)."""
    with opened(path) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Opens a file or directory for reading and yields its descriptor. Opening a FIFO doesn't wait
    for its writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
