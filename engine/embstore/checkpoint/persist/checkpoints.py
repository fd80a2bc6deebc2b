"""Directories that list the numbered checkpoints of durable pools; a listed one is always whole.

A checkpoint's files are written into a hidden directory beside the others, which is renamed to its
final name once the pools have all rows and the files are durable. engine/FORMAT.md (section
PERSISTED) describes the files.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from embstore.checkpoint.directories import (
    LOCK_NAME,
    lock_directory,
    number_in_name,
    numbered_directories,
)
from embstore.checkpoint.manifest import Manifest
from embstore.errors import CheckpointError
from embstore.files import make_directory, rename, sync, writing_to
from embstore.table.attempts import Attempts

__all__ = [
    "CheckpointDirectory",
    "checkpoint_path",
    "is_checkpoint_directory",
    "listed_ids",
    "listed_numbers",
    "remove_list",
]

_CHECKPOINT = re.compile(r"checkpoint-(\d{8,})")
_UNFINISHED = re.compile(r"\.checkpoint-(\d{8,})\.(unfinished|removed)")


def listed_numbers(path: Path) -> list[int]:
    """Returns the numbers of the durable checkpoints, ascending; none if `path` is missing."""
    return [
        number_in_name(entry)
        for entry in numbered_directories(path, _CHECKPOINT, may_be_missing=True)
    ]


def listed_ids(path: Path) -> set[bytes]:
    """Returns the ids of the listed checkpoints in their pools. Raises CheckpointError if a
    manifest can't be read.
    """
    found = [checkpoint_path(path, number) for number in listed_numbers(path)]
    return {bytes.fromhex(Manifest.read(directory).save_id) for directory in found}


def is_checkpoint_directory(path: Path) -> bool:
    """Returns whether checkpoints were ever begun in `path`; False if it isn't mounted now."""
    try:
        return (path / LOCK_NAME).exists()
    except OSError:  # the path is no valid name
        return False


def remove_list(path: Path) -> None:
    """Removes all checkpoints from the list of a directory that no process writes to."""
    with contextlib.closing(CheckpointDirectory(path)) as directory:
        for number in listed_numbers(path):
            directory.remove(number)


def checkpoint_path(path: Path, number: int | None) -> Path:
    """Returns the directory of a checkpoint; None: of the newest. Raises CheckpointError if there
    is none.
    """
    found = numbered_directories(path, _CHECKPOINT)
    if not found:
        raise CheckpointError(f"{path}: lists no checkpoint that is durable")
    if number is None:
        return found[-1]
    for entry in found:
        if number_in_name(entry) == number:
            return entry
    listed = ", ".join(str(number_in_name(entry)) for entry in found)
    raise CheckpointError(f"{path}: has no checkpoint {number}, only {listed}")


class CheckpointDirectory:
    """A directory of checkpoints that this process alone may write to, until close().

    Raises StorageError if another process has the directory, or it can't be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        with writing_to(path):
            make_directory(path)
            self._lock = lock_directory(path, "others persist to it")
            try:
                self._last_number = max(listed_numbers(path), default=0)
                sync(path)  # the lock file marks it as a directory of checkpoints
                for entry in path.iterdir():  # leftovers of a process that died
                    if _UNFINISHED.fullmatch(entry.name) and entry.is_dir():
                        shutil.rmtree(entry)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._lock.release()

    def begin(self) -> tuple[int, Path]:
        """Returns the next checkpoint's number, and an empty directory for its files."""
        with self._mutex:
            number = self._last_number + 1
            unfinished = self.path / f".checkpoint-{number:08}.unfinished"
            with writing_to(unfinished):
                unfinished.mkdir()
            self._last_number = number
        return number, unfinished

    def publish(self, number: int, unfinished: Path, manifest: Manifest) -> None:
        """Lists a checkpoint; durable on return."""
        finished = self.path / f"checkpoint-{number:08}"
        with writing_to(finished):
            manifest.write(unfinished)
            sync(unfinished)
            rename(unfinished, finished)

    def remove(self, number: int) -> None:
        """Removes a checkpoint from the list; durable on return."""
        shutil.rmtree(self._take_off_list(number), ignore_errors=True)

    @contextlib.contextmanager
    def without_newer(self, checkpoint: Path, is_held: Callable[[bytes], bool]) -> Iterator[None]:
        """A scope in which no checkpoint newer than `checkpoint` is listed, nor afterwards if it
        succeeds. If it fails, newer ones are listed again if is_held(id) says that the pools still
        have them.
        """
        newer = [n for n in listed_numbers(self.path) if n > number_in_name(checkpoint)]
        taken_off: dict[int, Path] = {}
        try:
            for number in newer:
                taken_off[number] = self._take_off_list(number)
            yield
        except BaseException:
            listing = Attempts()
            for number, removed in taken_off.items():
                with listing.attempt():
                    if is_held(bytes.fromhex(Manifest.read(removed).save_id)):
                        self._list_again(number, removed)
            listing.raise_first()
            raise
        finally:
            for removed in taken_off.values():
                shutil.rmtree(removed, ignore_errors=True)

    def _take_off_list(self, number: int) -> Path:
        """Takes a checkpoint off the list and returns its directory. Raises StorageError if that
        can't be made durable; then it stays listed.
        """
        listed = self.path / f"checkpoint-{number:08}"
        removed = self.path / f".checkpoint-{number:08}.removed"
        with writing_to(removed):
            rename(listed, removed)
        return removed

    def _list_again(self, number: int, removed: Path) -> None:
        listed = self.path / f"checkpoint-{number:08}"
        with writing_to(listed):
            removed.rename(listed)
            sync(self.path)

    def abandon(self, unfinished: Path) -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
