"""A lock that raises an error if a thread would wait for itself."""

from __future__ import annotations

import threading

from embstore.errors import UnsupportedError

__all__ = ["GuardedLock"]


class GuardedLock:
    """A lock like `threading.Lock`, but it raises an error in a thread that holds it already: a
    signal handler runs in the middle of its thread's work, and would wait for that forever.
    """

    def __init__(self, name: str) -> None:
        """name: the variable's, for errors."""
        self._name = name
        # An RLock and a flag: a signal handler may run while this thread holds the lock, but before
        # its work has begun or after it has ended, and is not refused then.
        self._lock = threading.RLock()
        self._is_in_use = False

    def acquire(self, blocking: bool = True) -> bool:
        """Returns whether it was acquired. Raises UnsupportedError if this thread holds it."""
        if not self._lock.acquire(blocking):
            return False
        if self._is_in_use:
            self._lock.release()
            raise UnsupportedError(
                f"{self._name}: this thread is in the middle of an update, a save or a restore of "
                "it. Let a signal handler only set a flag, and save after the step"
            )
        self._is_in_use = True
        return True

    def release(self) -> None:
        self._is_in_use = False
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
