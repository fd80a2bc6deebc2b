"""Directories that hold numbered saves, of which the newest is whole whatever happens.

A save is written into a hidden directory beside the others, and gets its name when the medium has
all of it. engine/FORMAT.md (section CHECKPOINT) says what lies where.
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
    "entries",
    "lock_directory",
    "newest_full",
    "number_of",
    "numbered",
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
    """The directory of the newest full save; CheckpointError where `path` has none."""
    hint = "restore the full one before it, and give this one as incremental="
    return _newest(path, _FULL, _INCREMENTAL, f"holds an incremental save; {hint}")


def only_incremental(path: Path) -> Path:
    """The directory of the incremental save; CheckpointError where `path` has none."""
    return _newest(path, _INCREMENTAL, _FULL, "holds a full save, not an incremental one")


def _newest(
    path: Path, wanted: re.Pattern[str], other: re.Pattern[str], told_of_other: str
) -> Path:
    saves = numbered(path, wanted)
    if saves:
        return saves[-1]
    raise CheckpointError(f"{path}: {told_of_other if numbered(path, other) else 'holds no save'}")


@contextlib.contextmanager
def publishing(path: Path, *, incremental: bool) -> Iterator[tuple[Path, Callable[[], None]]]:
    """An empty directory to write a save into, and what makes it the newest save of `path`.

    When that was called, older saves are removed on leaving; otherwise what was written is.
    """
    with writing_to(path):
        make_directory(path)
        with _locked(path):
            _check_kind(path, incremental=incremental)
            yield from _publish(path, "increment" if incremental else "save")


def _publish(path: Path, kind: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    for entry in path.iterdir():  # nobody else writes here while we hold the lock
        if _UNFINISHED.fullmatch(entry.name):
            shutil.rmtree(entry)
    older = numbered(path, _FULL)
    number = number_of(older[-1]) + 1 if older else 1
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
        remove_unless_read(save)  # what stays is removed by the next save


def remove_unless_read(directory: Path) -> None:
    """Removes a directory, unless a process is `reading` it; what can't be removed stays."""
    with contextlib.suppress(OSError), opened(directory, os.O_DIRECTORY) as descriptor:
        _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)


def _lock(descriptor: int, operation: int) -> None:
    """Does without the lock on a file system that has none for directories."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EBADF):
            raise


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[bool]:
    """The scope in which `remove_unless_read` leaves a directory. Yields False if it is gone.

    Raises CheckpointError where a file is in its place, and StorageError.
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
    """The directory of the newest full save, which newer ones leave meanwhile; CheckpointError
    where `path` has none.
    """
    while True:  # until no newer one takes its place before it's held
        save = newest_full(path)
        with reading(save) as is_there:
            if is_there:
                yield save
                return


def _check_kind(path: Path, *, incremental: bool) -> None:
    increments = numbered(path, _INCREMENTAL)
    if increments or (incremental and numbered(path, _FULL)):
        held = "an incremental save" if increments else "a full save"
        raise InvalidArgumentError(
            f"path: {path} holds {held}, which must not be lost; give this save another directory"
        )


def number_of(directory: Path) -> int:
    return int(directory.name.partition("-")[2])


def numbered(path: Path, pattern: re.Pattern[str], *, may_be_missing: bool = False) -> list[Path]:
    """The directories of that name, by number."""
    found = entries(path, pattern, may_be_missing=may_be_missing)
    with reading_from(path):
        return [entry for entry in found if entry.is_dir()]


def entries(path: Path, pattern: re.Pattern[str], *, may_be_missing: bool = False) -> list[Path]:
    """Whatever has such a name, by number."""
    try:
        with reading_from(path):
            found = [entry for entry in path.iterdir() if pattern.fullmatch(entry.name)]
    except FileNotFoundError:
        if may_be_missing:
            return []
        raise CheckpointError(f"{path}: there is no such directory") from None
    except NotADirectoryError:
        raise CheckpointError(f"{path}: is a file, not a directory of saves") from None
    return sorted(found, key=number_of)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = lock_directory(path)
    try:
        yield
    finally:
        lock.release()


def lock_directory(path: Path, why_not: str = "another save to it is under way") -> PathLock:
    """Keeps others from saving to `path` until it's released, or the process ends."""
    try:
        return PathLock(str(path / LOCK_NAME), str(path))
    except InUseError:
        raise InUseError(f"{path}: {why_not}") from None
