"""Reads and writes files and folders: says what the medium has on return, and which file it is that
the system refuses.
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
    """Raises what the system refuses in it as StorageError, but that there is no such file, or
    that it isn't a directory.
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
    """Raises what the system refuses in it as StorageError, which names the file; if the system
    doesn't, `path`.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: can't be written: {error.strerror or error}"
        ) from error


def read_file(path: Path) -> bytes:
    """Returns the bytes of a file, which may be of anybody's making. Raises CheckpointError where
    there is something else at `path` (a FIFO would have its reader wait for ever, and a device may
    have no end), and OSError.
    """
    with opened(path) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path}: is not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()


def make_directory(path: Path, argument: str = "path") -> None:
    """Makes a directory, unless it is there; its name is durable on return. Raises StorageError,
    which names the argument.
    """
    # Only the last part of the path: making the rest too would turn a mistyped or unmounted
    # device into an ordinary directory without a word.
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


def rename(what: Path, to: Path) -> None:
    """Gives it another name: the medium has it on return, or the old one stays."""
    what.rename(to)
    try:
        sync(to.parent)
    except OSError:
        to.rename(what)
        raise


def replace_file(path: Path, text: bytes) -> None:
    """Writes a file whole: the medium has it on return, or what was there stays. Raises as
    `writing_to`.
    """
    unfinished = path.with_name(f"{path.name}.new")
    with writing_to(path):
        unfinished.write_bytes(text)
        sync(unfinished)
        unfinished.rename(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Brings a file, or a directory's names, to the medium."""
    with opened(path) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    """The descriptor of a file or directory, to read; it waits for nobody."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
