"""A lock that reports when a thread waits for it, so that a test need not guess."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

__all__ = ["ReportingLock"]


class _Lock(Protocol):
    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...


class ReportingLock:
    """Stands in for a Lock or RLock in `with` statements."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock
        self._has_come = threading.Event()

    def wait_for(self, call: Future[Any]) -> None:
        """Returns when a thread waits for the lock, or when the call ends without waiting."""
        call.add_done_callback(lambda _: self._has_come.set())
        assert self._has_come.wait(30)

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._has_come.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
