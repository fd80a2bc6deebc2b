"""Rows that were asked for before they are looked up."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_BATCHES", "PendingRows", "Prefetched"]

MOST_BATCHES = 16  # that are never looked up are forgotten


class PendingRows(Protocol):
    """Of one look-up; on their way."""

    def write_to(self, rows: NDArray[np.float32]) -> None:
        """Waits for them; rows float32 (n, dim), those of the ids in order."""

    def give_up(self) -> None: ...


_RowsT = TypeVar("_RowsT", bound=PendingRows)


@dataclass
class _Batch(Generic[_RowsT]):
    after: int  # pushes, of all that were begun, that its rows must have seen
    is_begun: bool = False  # some of its look-ups were made
    look_ups: deque[tuple[NDArray[np.int64], _RowsT]] = field(default_factory=deque)


class Prefetched(Generic[_RowsT]):
    """Of one variable, in the order in which its batches will be looked up and trained.

    Rows are those of after exactly so many pushes as the look-up finds, or they aren't used: a
    look-up gives the same with and without prefetching. So a guess that was wrong costs time alone.
    Any thread may add batches, in the middle of a step too.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        # Guarded by it:
        self._batches: deque[_Batch[_RowsT]] = deque()
        self._pushes = 0  # that were begun
        self._running_pushes = 0
        self._is_looked_up = False  # a batch, since the last push

    def add(
        self,
        batch: Sequence[NDArray[np.int64]],
        begin: Callable[[NDArray[np.int64], int], _RowsT],
    ) -> None:
        """One that is trained by one push, after those that were added before.

        batch: the ids of each of its look-ups, (n,). begin: asks for the rows of such ids, which
            are to be read after so many more pushes.
        """
        with self._lock:
            # While one is running, some shards have begun it and others haven't.
            self._lock.wait_for(lambda: not self._running_pushes)
            is_apart = self._is_looked_up and not self._has_begun_batch()
            ahead = is_apart + len(self._batches)
            added = _Batch[_RowsT](self._pushes + ahead)
            for ids in batch:
                added.look_ups.append((ids.copy(), begin(ids, ahead)))
            self._batches.append(added)
            while len(self._batches) > MOST_BATCHES:
                _give_up(self._batches.popleft())

    def take(self, ids: NDArray[np.int64]) -> _RowsT | None:
        """The rows of a look-up for training that is made now, where they were asked for."""
        with self._lock:
            self._is_looked_up = True
            for i, batch in enumerate(self._batches):
                for place, (asked, rows) in enumerate(batch.look_ups):
                    if not np.array_equal(asked, ids):
                        continue
                    for _ in range(i):
                        _give_up(self._batches.popleft())
                    batch.is_begun = True
                    del batch.look_ups[place]
                    if not batch.look_ups:
                        self._batches.popleft()
                    if batch.after == self._pushes:
                        return rows
                    rows.give_up()
                    return None
            return None

    @contextlib.contextmanager
    def push(self) -> Iterator[None]:
        """In it one is made."""
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
        """Rows have changed by something else than a push."""
        with self._lock:
            while self._batches:
                _give_up(self._batches.popleft())

    def _has_begun_batch(self) -> bool:
        return bool(self._batches) and self._batches[0].is_begun


def _give_up(batch: _Batch[_RowsT]) -> None:
    for _, rows in batch.look_ups:
        rows.give_up()
