"""Directories that list the checkpoints of durable pools: numbered, each whole or not there.

A checkpoint is written into a hidden directory beside the others, and gets its name when the pools
have all of its rows and the medium has all of its files. engine/FORMAT.md (section PERSISTED) says
what lies where.
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
    number_of,
    numbered,
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
    """Of the checkpoints that are durable, ascending; none where there is no such directory."""
    return [number_of(entry) for entry in numbered(path, _CHECKPOINT, may_be_missing=True)]


def listed_ids(path: Path) -> set[bytes]:
    """By which their pools know them. Raises CheckpointError where a manifest can't be read."""
    found = [checkpoint_path(path, number) for number in listed_numbers(path)]
    return {bytes.fromhex(Manifest.read(directory).save_id) for directory in found}


def is_checkpoint_directory(path: Path) -> bool:
    """Whether checkpoints were ever begun there. Where it isn't mounted now, they weren't."""
    try:
        return (path / LOCK_NAME).exists()
    except OSError:  # no name that a directory can have
        return False


def remove_list(path: Path) -> None:
    """Takes all checkpoints off the list of a directory that nobody writes to."""
    with contextlib.closing(CheckpointDirectory(path)) as directory:
        for number in listed_numbers(path):
            directory.remove(number)


def checkpoint_path(path: Path, number: int | None) -> Path:
    """The directory of a checkpoint, or of the newest; CheckpointError where there is none."""
    found = numbered(path, _CHECKPOINT)
    if not found:
        raise CheckpointError(f"{path}: lists no checkpoint that is durable")
    if number is None:
        return found[-1]
    for entry in found:
        if number_of(entry) == number:
            return entry
    listed = ", ".join(str(number_of(entry)) for entry in found)
    raise CheckpointError(f"{path}: has no checkpoint {number}, only {listed}")


class CheckpointDirectory:
    """One process's right to write checkpoints to `path`, from its first to its last use.

    Raises StorageError where another process has that right, or the path can't be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        with writing_to(path):
            make_directory(path)
            self._lock = lock_directory(path, "others persist to it")
            try:
                self._last_number = max(listed_numbers(path), default=0)
                sync(path)  # by its lock it's known for what it is
                for entry in path.iterdir():  # what a process left that died
                    if _UNFINISHED.fullmatch(entry.name) and entry.is_dir():
                        shutil.rmtree(entry)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._lock.release()

    def begin(self) -> tuple[int, Path]:
        """The next checkpoint's number, and an empty directory for its files."""
        with self._mutex:
            number = self._last_number + 1
            unfinished = self.path / f".checkpoint-{number:08}.unfinished"
            with writing_to(unfinished):
                unfinished.mkdir()
            self._last_number = number
        return number, unfinished

    def publish(self, number: int, unfinished: Path, manifest: Manifest) -> None:
        """It is listed from now on, whatever happens."""
        finished = self.path / f"checkpoint-{number:08}"
        with writing_to(finished):
            manifest.write(unfinished)
            sync(unfinished)
            rename(unfinished, finished)

    def remove(self, number: int) -> None:
        """It isn't listed any more, whatever happens."""
        shutil.rmtree(self._taken_off(number), ignore_errors=True)

    @contextlib.contextmanager
    def without_newer(self, checkpoint: Path, is_held: Callable[[bytes], bool]) -> Iterator[None]:
        """The scope in which no newer one is listed; nor after it, if it ends well. Else those come
        back of which is_held() says that the pools have them still.
        """
        newer = [n for n in listed_numbers(self.path) if n > number_of(checkpoint)]
        taken_off: dict[int, Path] = {}
        try:
            for number in newer:
                taken_off[number] = self._taken_off(number)
            yield
        except BaseException:
            listing = Attempts()
            for number, removed in taken_off.items():
                with listing.one():
                    if is_held(bytes.fromhex(Manifest.read(removed).save_id)):
                        self._list_again(number, removed)
            listing.end()
            raise
        finally:
            for removed in taken_off.values():
                shutil.rmtree(removed, ignore_errors=True)

    def _taken_off(self, number: int) -> Path:
        """Where it lies then. It stays listed where that can't be brought to the medium."""
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
