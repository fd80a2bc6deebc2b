"""The prefetched look-ups of a variable with shards in other processes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.table.remote_shards import RemoteLookup

__all__ = ["MAX_BATCHES", "Prefetched"]

MAX_BATCHES = 16  # prefetched batches that are kept; then the oldest is forgotten


@dataclass
class _PrefetchedBatch:
    after: int  # its rows are read after this many pushes, counted from the first
    is_begun: bool = False  # some of its look-ups were taken
    look_ups: deque[tuple[NDArray[np.int64], RemoteLookup]] = field(default_factory=deque)


class Prefetched:
    """The prefetched batches of one variable, in the order in which they will be trained.

    Prefetched rows are used only if they were read after exactly as many pushes as were begun when
    the batch is looked up. So look-ups return the same with and without prefetching, and a wrong
    guess costs only time. Any thread may add batches, also in the middle of a step.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        # Guarded by _lock:
        self._batches: deque[_PrefetchedBatch] = deque()
        self._pushes = 0  # pushes that were begun
        self._running_pushes = 0
        self._is_looked_up = False  # a batch was looked up since the last push

    def add(
        self,
        batch: Sequence[NDArray[np.int64]],
        begin: Callable[[NDArray[np.int64], int], RemoteLookup],
    ) -> None:
        """Adds a batch that one push will train, after the batches added before.

        batch: the ids (n,) of each of its look-ups. begin(ids, ahead): makes the look-up of ids
            whose rows are to be read after `ahead` more pushes.
        """
        with self._lock:
            # While a push is running, some shards have begun it and others haven't.
            self._lock.wait_for(lambda: not self._running_pushes)
            is_after_current = self._is_looked_up and not self._has_begun_batch()
            ahead = is_after_current + len(self._batches)
            added = _PrefetchedBatch(self._pushes + ahead)
            for ids in batch:
                added.look_ups.append((ids.copy(), begin(ids, ahead)))
            self._batches.append(added)
            while len(self._batches) > MAX_BATCHES:
                _give_up(self._batches.popleft())

    def take(self, ids: NDArray[np.int64]) -> RemoteLookup | None:
        """Returns the prefetched rows of a look-up for training, or None."""
        with self._lock:
            self._is_looked_up = True
            for i, batch in enumerate(self._batches):
                for position, (prefetched_ids, rows) in enumerate(batch.look_ups):
                    if not np.array_equal(prefetched_ids, ids):
                        continue
                    for _ in range(i):
                        _give_up(self._batches.popleft())
                    batch.is_begun = True
                    del batch.look_ups[position]
                    if not batch.look_ups:
                        self._batches.popleft()
                    if batch.after == self._pushes:
                        return rows
                    rows.give_up()
                    return None
            return None

    @contextlib.contextmanager
    def push(self) -> Iterator[None]:
        """A scope in which a push is made."""
        with self._lock:
            self._pushes += 1
            self._running_pushes += 1
            self._is_looked_up = False
            if self._has_begun_batch():
                _give_up(self._batches.popleft())
        try:
            yield
        finally:
            with self._lock:
                self._running_pushes -= 1
                self._lock.notify_all()

    def forget(self) -> None:
        """Gives all batches up, because something else than a push changes rows."""
        with self._lock:
            while self._batches:
                _give_up(self._batches.popleft())

    def _has_begun_batch(self) -> bool:
        return bool(self._batches) and self._batches[0].is_begun


def _give_up(batch: _PrefetchedBatch) -> None:
    for _, rows in batch.look_ups:
        rows.give_up()
