"""Directories of numbered saves, the newest of which is always whole.

A save is written into a hidden directory beside the others, and is renamed to its final name once
all of it is durable. engine/FORMAT.md (section CHECKPOINT) describes the files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from embstore._core import PathLock
from embstore.errors import CheckpointError, InUseError, InvalidArgumentError
from embstore.files import make_directory, opened, reading_from, rename, sync, writing_to

__all__ = [
    "LOCK_NAME",
    "lock_directory",
    "newest_full",
    "number_in_name",
    "numbered_directories",
    "numbered_entries",
    "only_incremental",
    "publishing",
    "reading",
    "reading_newest_full",
    "remove_unless_read",
]

LOCK_NAME = ".lock"

_FULL = re.compile(r"save-(\d{8,})")
_INCREMENTAL = re.compile(r"increment-(\d{8,})")
_UNFINISHED = re.compile(r"\.(save|increment)-\d{8,}\.unfinished")


def newest_full(path: Path) -> Path:
    """Returns the directory of the newest full save. Raises CheckpointError if there is none."""
    if saves := numbered_directories(path, _FULL):
        return saves[-1]
    if numbered_directories(path, _INCREMENTAL):
        raise CheckpointError(
            f"{path}: holds an incremental save; restore the full one before it, and give this one "
            "as incremental="
        )
    raise CheckpointError(
        f"{path}: holds no save; a folder of embstore.Checkpoints is restored with that class"
    )


def only_incremental(path: Path) -> Path:
    """Returns the directory of the incremental save. Raises CheckpointError if there is none."""
    if saves := numbered_directories(path, _INCREMENTAL):
        return saves[-1]
    if numbered_directories(path, _FULL):
        raise CheckpointError(f"{path}: holds a full save, not an incremental one")
    raise CheckpointError(
        f"{path}: holds no save; if the save to it failed or was killed, leave this path out"
    )


@contextlib.contextmanager
def publishing(path: Path, *, incremental: bool) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yields an empty directory to write a save into, and a function that makes it the newest save
    of `path`.

    On leaving, removes older saves if that function was called, and the new directory otherwise.
    """
    with writing_to(path):
        make_directory(path)
        with _locked(path):
            _check_kind(path, incremental=incremental)
            yield from _publish(path, "increment" if incremental else "save")


def _publish(path: Path, kind: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    for entry in path.iterdir():  # leftovers, as this process holds the lock
        if _UNFINISHED.fullmatch(entry.name):
            shutil.rmtree(entry)
    older = numbered_directories(path, _FULL)
    number = number_in_name(older[-1]) + 1 if older else 1
    unfinished = path / f".{kind}-{number:08}.unfinished"
    finished = path / f"{kind}-{number:08}"
    published = False

    def publish() -> None:
        nonlocal published
        sync(unfinished)
        rename(unfinished, finished)
        published = True

    unfinished.mkdir()
    try:
        yield unfinished, publish
    finally:
        if not published:
            shutil.rmtree(unfinished, ignore_errors=True)
    for save in older:
        remove_unless_read(save)  # the next save tries again


def remove_unless_read(directory: Path) -> None:
    """Removes a directory unless a process is `reading` it. Ignores errors: what can't be removed
    stays.
    """
    with contextlib.suppress(OSError), opened(directory, os.O_DIRECTORY) as descriptor:
        _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)


def _lock(descriptor: int, operation: int) -> None:
    """Locks a directory; does nothing on a file system without locks for directories."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EBADF):
            raise


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[bool]:
    """A scope in which `remove_unless_read` does not remove a directory. Yields whether it exists.

    Raises CheckpointError if it is a file, and StorageError.
    """
    with contextlib.ExitStack() as held:
        try:
            with reading_from(directory):
                descriptor = held.enter_context(opened(directory, os.O_DIRECTORY))
        except FileNotFoundError:
            is_there = False
        except NotADirectoryError:
            raise CheckpointError(f"{directory}: is a file, not a directory") from None
        else:
            _lock(descriptor, fcntl.LOCK_SH)
            is_there = directory.exists()
        yield is_there


@contextlib.contextmanager
def reading_newest_full(path: Path) -> Iterator[Path]:
    """Yields the directory of the newest full save, which newer saves don't remove in the scope.
    Raises CheckpointError if there is none.
    """
    while True:  # tries again if a newer save replaced this one before it was locked
        save = newest_full(path)
        with reading(save) as is_there:
            if is_there:
                yield save
                return


def _check_kind(path: Path, *, incremental: bool) -> None:
    increments = numbered_directories(path, _INCREMENTAL)
    if increments or (incremental and numbered_directories(path, _FULL)):
        held = "an incremental save" if increments else "a full save"
        raise InvalidArgumentError(
            f"path: {path} holds {held}, which must not be lost; give this save another directory"
        )


def number_in_name(directory: Path) -> int:
    return int(directory.name.partition("-")[2])


def numbered_directories(
    path: Path, pattern: re.Pattern[str], *, may_be_missing: bool = False
) -> list[Path]:
    """Returns the directories in `path` whose name matches, ordered by number."""
    found = numbered_entries(path, pattern, may_be_missing=may_be_missing)
    with reading_from(path):
        return [entry for entry in found if entry.is_dir()]


def numbered_entries(
    path: Path, pattern: re.Pattern[str], *, may_be_missing: bool = False
) -> list[Path]:
    """Returns the entries of `path` whose name matches, ordered by number. Raises CheckpointError
    if `path` is missing, unless may_be_missing, or is a file.
    """
    try:
        with reading_from(path):
            found = [entry for entry in path.iterdir() if pattern.fullmatch(entry.name)]
    except FileNotFoundError:
        if may_be_missing:
            return []
        raise CheckpointError(f"{path}: there is no such directory") from None
    except NotADirectoryError:
        raise CheckpointError(f"{path}: is a file, not a directory of saves") from None
    return sorted(found, key=number_in_name)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = lock_directory(path)
    try:
        yield
    finally:
        lock.release()


def lock_directory(path: Path, reason: str = "another save to it is under way") -> PathLock:
    """Locks `path` against other saves until the lock is released or the process ends. Raises
    InUseError.
    """
    try:
        return PathLock(str(path / LOCK_NAME), str(path))
    except InUseError:
        raise InUseError(f"{path}: {reason}") from None
