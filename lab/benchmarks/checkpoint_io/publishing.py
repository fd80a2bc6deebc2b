"""Writes files that exist whole or not at all: written under another name, synced, then renamed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.checkpoint_io.errors import CheckpointInUseError, NoCheckpointError
from benchmarks.checkpoint_io.phases import PhaseClock
from pmemlab.whole_file import sync_folder

__all__ = [
    "ClockedFile",
    "check_readable",
    "publish",
    "replacing",
    "unfinished_file",
]

UNFINISHED = ".unfinished"


class ClockedFile:
    """A file for `torch.save` whose every write(2) counts as the phase `write`.

    error: the error of the first write that failed.
    """

    def __init__(self, descriptor: int, clock: PhaseClock) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        count = len(rest)
        try:
            with self._clock("write"):
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self.error = self.error or error
            raise
        return count

    def flush(self) -> None:
        """Does nothing: no data is buffered."""


@contextmanager
def replacing(path: Path, clock: PhaseClock) -> Iterator[ClockedFile]:
    """Yields a file that replaces `path` at the end of the block; then it and its folder are
    synced.

    After an error `path` is unchanged and no other file is left; a kill may leave a file named
    `*.unfinished`, which the next save overwrites. Raises CheckpointInUseError if another save is
    running, OSError if the file can't be written.
    """
    with unfinished_file(path) as (descriptor, unfinished):
        file = ClockedFile(descriptor, clock)
        try:
            yield file
        except Exception as error:
            if file.error is not None:  # torch.save makes a RuntimeError of it
                raise file.error from error
            raise
        with clock("sync"):
            os.fsync(descriptor)
            publish(unfinished, path)


def publish(unfinished: Path, path: Path) -> None:
    """Rename a synced file to `path`, and sync the folder."""
    unfinished.rename(path)
    sync_folder(path.parent)


def check_readable(path: Path) -> None:
    """Raises NoCheckpointError if there is no file, OSError if it can't be opened."""
    try:
        path.open("rb").close()
    except FileNotFoundError as error:
        raise NoCheckpointError(path) from error


@contextmanager
def unfinished_file(path: Path) -> Iterator[tuple[int, Path]]:
    """Yields an empty file beside `path`, locked against other saves, as descriptor and path.

    If an error ends the block, the file is removed, and an OSError that names no file then names
    this file.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, unfinished)
        try:
            os.ftruncate(descriptor, 0)
            yield descriptor, unfinished
        except BaseException as error:
            with suppress(FileNotFoundError):
                unfinished.unlink()
            if isinstance(error, OSError) and error.errno and error.filename is None:
                raise OSError(error.errno, error.strerror, str(unfinished)) from error
            raise
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Locks the file, and checks that no other save has published it meanwhile. Raises
    CheckpointInUseError.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise CheckpointInUseError(f"{path}: another save is writing this checkpoint")
