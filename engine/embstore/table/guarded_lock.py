"""A lock that tells a thread which waits for itself."""

from __future__ import annotations

import threading

from embstore.errors import UnsupportedError

__all__ = ["GuardedLock"]


class GuardedLock:
    """As `threading.Lock`, but who has it already is refused: a handler of signals runs in the
    middle of what its thread does, and would wait for it forever.
    """

    def __init__(self, name: str) -> None:
        """name: that of the variable."""
        self._name = name
        # A signal may come before what is done in the lock begins, or when it is over: not refused.
        self._lock = threading.RLock()
        self._is_in_use = False

    def acquire(self, blocking: bool = True) -> bool:
        """Raises UnsupportedError where this thread has it."""
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
