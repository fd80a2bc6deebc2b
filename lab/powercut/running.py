"""Lets one thread end the processes that the threads of a pool wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["RunningProcesses", "killable_by_pool"]

_POOL = threading.local()
_BETWEEN_KILLS_S = 0.02


class RunningProcesses:
    """The processes that the threads of a pool wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kills: list[Callable[[], None]] = []
        self._is_over = False

    def adopt_this_thread(self) -> None:
        """Makes the calling thread one of the pool's."""
        _POOL.running = self

    @contextlib.contextmanager
    def registered(self, kill: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            self._kills.append(kill)
            if self._is_over:
                kill()
        try:
            yield
        finally:
            with self._lock:
                self._kills.remove(kill)

    def end(self) -> None:
        """Kills all processes, and later ones too, until no thread waits any more."""
        self._is_over = True
        while self._kills:
            with self._lock:
                for kill in self._kills:
                    kill()
            time.sleep(_BETWEEN_KILLS_S)


@contextlib.contextmanager
def killable_by_pool(kill: Callable[[], None]) -> Iterator[None]:
    """Lets `kill` end the process that this thread waits for, if the thread belongs to a pool."""
    running: RunningProcesses | None = getattr(_POOL, "running", None)
    with contextlib.nullcontext() if running is None else running.registered(kill):
        yield
