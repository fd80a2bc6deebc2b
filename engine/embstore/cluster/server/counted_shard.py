"""A shard that knows how many ids it was recently asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from embstore.table.shard import LocalShard, ShardSpec

__all__ = ["WINDOW_S", "CountedShard", "Rate"]

WINDOW_S = 10


class Rate:
    """A rate per second over the last WINDOW_S, or its lifetime if that is shorter. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._lock = threading.Lock()
        self._seconds = [-1] * WINDOW_S  # second s of the clock is in slot s % WINDOW_S
        self._counts = [0] * WINDOW_S

    def add(self, count: int) -> None:
        second = int(self._clock_s())
        slot = second % WINDOW_S
        with self._lock:
            if self._seconds[slot] != second:
                self._seconds[slot] = second
                self._counts[slot] = 0
            self._counts[slot] += count

    def per_s(self) -> float:
        now_s = self._clock_s()
        oldest = int(now_s) - WINDOW_S + 1  # the current second has only begun
        with self._lock:
            total = sum(
                count
                for second, count in zip(self._seconds, self._counts, strict=True)
                if second >= oldest
            )
        return total / max(1.0, min(now_s - oldest, now_s - self._began_s))


class CountedShard(LocalShard):
    """A shard with rates of ids that were looked up and applied, repeated ids included. Requests
    that fail aren't counted, and an apply counts when it is committed.
    """

    def __init__(self, spec: ShardSpec) -> None:
        super().__init__(spec)
        self.looked_up = Rate()
        self.applied = Rate()

    def note_look_up(self, count: int) -> None:
        self.looked_up.add(count)

    def note_applied(self, count: int) -> None:
        self.applied.add(count)
