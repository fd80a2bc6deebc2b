"""Folders that hold a machine's files on this computer while the machine lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from pmemlab.errors import LabError

__all__ = ["POWER_CUT_FILE", "PROOF_FILE", "StateFolder"]

PROOF_FILE: Final = "proof.json"
"""The proof; the file exists while the machine of `pmemlab machine serve` is proved."""

POWER_CUT_FILE: Final = "power-cut"
"""Exists in place of the proof while the machine is without power."""

_PREFIX = "pmemlab-machine-"
_NAMES = ("console.log", "control.sock", "lock", POWER_CUT_FILE, PROOF_FILE, "qemu.log")
# Content of the lock file; only a temporary folder's has the second line.
_MARK = b"pmemlab: this folder is a machine's\n"
_IS_TEMPORARY = b"It goes with the machine, or when the next one starts.\n"
_UNWAITED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_STALE_AFTER_S = 60.0  # a younger folder may not have been locked yet


def _check_no_user_file(folder: Path) -> None:
    """Raises LabError if a file of the user's in the folder has a name that a machine uses, unless
    a machine has used the folder before: a machine overwrites and removes files of these names.
    """
    try:
        names = sorted(file.name for file in folder.iterdir())
        lock = _read_user_file(folder / "lock") if "lock" in names else b""
    except OSError as error:
        raise LabError(f"state folder {folder}: {error.strerror}") from error
    taken = [name for name in names if name in _NAMES or name.endswith(".img")]
    if not lock:
        taken = [name for name in taken if name != "lock"]
    if taken and not lock.startswith(_MARK):
        raise LabError(
            f"state folder {folder}: has a file that a machine would overwrite ({taken[0]}), and "
            "no machine made it; give another folder"
        )


def _read_user_file(path: Path) -> bytes:
    """Returns the content of a plain file of this user's. Returns nothing for another user's file,
    or for a pipe, whose open would wait for a writer.
    """
    with os.fdopen(os.open(path, _UNWAITED), "rb") as file:
        return file.read() if _is_users_file(file) else b""


def _is_users_file(file: IO[bytes]) -> bool:
    found = os.fstat(file.fileno())
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()


def _remove_if_stale(folder: Path) -> None:
    """Removes a temporary folder if its lock is free: its owner was killed."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
            with os.fdopen(os.open(folder / "lock", _UNWAITED), "rb") as lock:
                if _is_users_file(lock) and lock.read() == _MARK + _IS_TEMPORARY:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


def _lock(path: Path) -> int:
    """Returns the descriptor of the file, made and locked. Raises OSError; BlockingIOError if
    another process has locked it.

    A process removes the file before it unlocks it, so a file opened before that is not the file
    that others find at the path. Only a lock of the file that is at the path now counts.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_at(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _is_file_at(descriptor: int, path: Path) -> bool:
    """Returns whether the descriptor's file is the one at the path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class StateFolder:
    """A folder that this process has locked while it uses it: a temporary folder, which `release`
    removes, or one of the caller's.
    """

    def __init__(self, path: Path, is_temporary: bool) -> None:
        self.path = path.absolute()
        self._is_temporary = is_temporary
        self._lock_file = self.path / "lock"
        self._releasing = threading.Lock()
        _check_no_user_file(self.path)
        try:
            self._lock = _lock(self._lock_file)
        except BlockingIOError:
            raise LabError(f"state folder {path}: another machine is using it") from None
        except OSError as error:
            raise LabError(f"state folder {path}: {error.strerror}") from error
        os.ftruncate(self._lock, 0)
        os.write(self._lock, _MARK + (_IS_TEMPORARY if is_temporary else b""))

    @classmethod
    def temporary(cls, parent: Path | None = None) -> StateFolder:
        """Returns a new temporary folder in `parent` (default: where temporary files go).

        First removes folders there whose locks are free: their owners were killed.
        """
        parent = parent or Path(tempfile.gettempdir())
        for folder in parent.glob(f"{_PREFIX}*"):
            _remove_if_stale(folder)
        return cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)), is_temporary=True)

    def release(self, *names: str) -> None:
        """Removes the folder, or only these files if the folder is the caller's, and unlocks it.

        Idempotent, and for any thread: a second call waits until the folder is removed.
        """
        with self._releasing:
            if self._lock < 0:
                return
            if self._is_temporary:
                shutil.rmtree(self.path, ignore_errors=True)
            else:
                for name in (*names, self._lock_file.name):
                    (self.path / name).unlink(missing_ok=True)
            # In this order, so that an interrupt in between can't close it twice: its number may
            # then be another file's.
            lock, self._lock = self._lock, -1
            os.close(lock)
