"""The pushes to a shard: each is applied once, when every worker's part of it is there.

A push is one batch of gradients. Its parts are put together in the workers' order, so the rows have
the same bits whoever is faster. A part that comes again, since its worker didn't get the answer, is
answered as before, and not applied again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import ClosedError, EmbStoreError, InvalidArgumentError, WorkerLostError

__all__ = ["PushPart", "PushRules", "Pushes"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class PushRules:
    """Whose parts make a push.

    workers: so many, numbered from 0.
    is_synchronous: a push has a part of each worker; else each worker's pushes are its own.
    is_mean: the gradients of a push are the mean of the workers', as if they had computed the mean
        loss of one batch together; else the sum.
    patience_s: how long a part waits for those of the other workers.
    """

    workers: int = 1
    is_synchronous: bool = True
    is_mean: bool = True
    patience_s: float = 300.0


@dataclass(frozen=True)
class PushPart:
    """What a worker sends of a push; the arrays stay as they are until the push is settled.

    occurrences: how often each id occurred in the batch; None: once.
    """

    worker: int
    number: int
    ids: NDArray[np.int64]  # (n,)
    grads: NDArray[np.float32]  # (n, dim)
    occurrences: NDArray[np.uint32] | None  # (n,)


class _Updates(Protocol):
    """Of a shard. What is prepared is committed or aborted by the same thread."""

    def prepare_apply(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[np.float32],
        occurrences: NDArray[np.uint32] | None = None,
    ) -> int: ...
    def commit_apply(self, number: int, global_step: int | None) -> None: ...
    def abort_apply(self, number: int) -> None: ...


class Pushes:
    """Of one shard. Any number of threads may call at once, each for a worker of its own."""

    def __init__(self, shard: _Updates, rules: PushRules) -> None:
        self._workers = rules.workers
        shared = _Sequence(shard, range(rules.workers), rules) if rules.is_synchronous else None
        self._sequences = [
            shared or _Sequence(shard, (worker,), rules) for worker in range(rules.workers)
        ]

    def prepare(self, part: PushPart) -> None:
        """Returns when the whole push is there and can't fail any more.

        Raises what the shard refused it for; WorkerLostError where another worker's part doesn't
        come. Then the push is over, for all workers.
        """
        self._of(part.worker).prepare(part)

    def commit(self, worker: int, number: int, global_step: int | None) -> None:
        """Every shard has it prepared. The first of the workers who says so has it applied."""
        self._of(worker).commit(number, global_step)

    def abort(self, worker: int, number: int) -> None:
        """A shard has refused it, or the worker has given it up.

        One that is prepared here may have been applied elsewhere, by a worker that found it
        prepared everywhere: then that one's commit comes here, too. So it is over only when all
        workers have aborted it.
        """
        self._of(worker).abort(worker, number)

    def wait_until_settled(self, worker: int, number: int) -> None:
        """Returns when the push is over, whether it was applied or refused."""
        self._of(worker).wait_until_settled(number)

    def give_up(self) -> None:
        """What isn't applied yet won't be; nothing of the shard is held any more."""
        for sequence in set(self._sequences):
            sequence.give_up()

    def close(self) -> None:
        for sequence in set(self._sequences):
            sequence.close()

    def _of(self, worker: int) -> _Sequence:
        if worker >= self._workers:
            raise InvalidArgumentError(
                f"worker {worker} pushes to a shard that was opened for {self._workers}; give all "
                "workers the same number of them"
            )
        return self._sequences[worker]


class _Sequence:
    """Pushes of the same workers, one after the other."""

    def __init__(self, shard: _Updates, workers: range | tuple[int, ...], rules: PushRules) -> None:
        self._shard = shard
        self._workers = workers
        self._scale = np.float32(1 / len(workers)) if rules.is_mean else np.float32(1)
        self._patience_s = rules.patience_s
        self._thread = ThreadPoolExecutor(1, "embstore-push")  # to which the prepared one belongs
        self._changed = threading.Condition()
        # Guarded by it:
        self._is_closed = False
        self._settled = 0  # the number of the last push that was applied, refused or given up
        self._refused: tuple[int, Exception] | None = None  # the last that was, and why
        self._parts: dict[int, PushPart] = {}  # by worker, of the one after the settled
        self._prepared: int | None = None  # that one, as the shard calls it
        self._aborted_by: set[int] = set()  # workers, of that one since it was prepared

    def prepare(self, part: PushPart) -> None:
        with self._changed:
            self._wait_for_what_it_aborted(part)
            self._begin(part)
            if part.number <= self._settled:
                return self._raise_if_refused(part.number)
            if self._prepared is not None:
                return None
            self._parts.setdefault(part.worker, part)
            if len(self._parts) == len(self._workers):
                return self._prepare()
            return self._wait_for_others(part.number)

    def commit(self, number: int, global_step: int | None) -> None:
        with self._changed:
            if number <= self._settled:
                return self._raise_if_refused(number)
            if number != self._settled + 1 or self._prepared is None:
                raise InvalidArgumentError(f"push {number} is committed, and wasn't prepared")
            prepared, self._prepared = self._prepared, None

            def apply() -> None:
                self._shard.commit_apply(prepared, global_step)
                _core.wait_as_owed()  # which a commit doesn't, since it may be one of several

            self._do(apply)
            self._settle(number)
            return None

    def abort(self, worker: int, number: int) -> None:
        with self._changed:
            if number <= self._settled:
                return
            self._aborted_by.add(worker)
            if self._prepared is None or len(self._aborted_by) == len(self._workers):
                self._refuse(number, EmbStoreError(f"push {number} was given up by a worker"))

    def wait_until_settled(self, number: int) -> None:
        deadline = time.monotonic() + self._patience_s
        with self._changed:
            while self._settled < number:
                if self._is_closed or not self._changed.wait(deadline - time.monotonic()):
                    raise WorkerLostError(f"push {number} hasn't come")

    def give_up(self) -> None:
        with self._changed:
            if self._parts or self._prepared is not None:
                self._refuse(self._settled + 1, ClosedError("the shard was closed"))

    def close(self) -> None:
        self.give_up()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.shutdown()

    def _wait_for_what_it_aborted(self, part: PushPart) -> None:
        """The others have yet to do so, or to commit it."""
        deadline = time.monotonic() + self._patience_s
        while (
            part.worker in self._aborted_by
            and part.number == self._settled + 2
            and not self._is_closed
        ):
            if not self._changed.wait(deadline - time.monotonic()):
                raise WorkerLostError(
                    f"push {part.number - 1}: another worker neither commits nor aborts it for "
                    f"{self._patience_s:g} s; start the job again from its last checkpoint"
                )

    def _begin(self, part: PushPart) -> None:
        """Has `part` be of the push that is next, or of one that was settled before."""
        if self._is_closed:
            raise ClosedError("the shard is closed")
        after = self._settled + 1
        if part.number <= after:
            return
        if len(self._workers) > 1:
            raise InvalidArgumentError(
                f"worker {part.worker} is at push {part.number}, and the shard at {after}: all "
                "workers must train the same variables in the same order"
            )
        # The worker was interrupted in those before, and goes on.
        self._refuse(part.number - 1, EmbStoreError("its worker gave it up"))

    def _prepare(self) -> None:
        number = self._settled + 1
        parts = [self._parts[worker] for worker in self._workers]
        try:
            self._prepared = self._do(lambda: self._prepare_as_one(parts))
        except Exception as error:
            self._refuse(number, error)
            raise
        self._changed.notify_all()

    def _prepare_as_one(self, parts: list[PushPart]) -> int:
        if len(parts) == 1:
            (part,) = parts
            return self._shard.prepare_apply(part.ids, part.grads, part.occurrences)
        grads = np.concatenate([part.grads for part in parts])
        grads *= self._scale
        counts = [
            np.ones(part.ids.size, np.uint32) if part.occurrences is None else part.occurrences
            for part in parts
        ]
        ids = np.concatenate([part.ids for part in parts])
        return self._shard.prepare_apply(ids, grads, np.concatenate(counts))

    def _wait_for_others(self, number: int) -> None:
        deadline = time.monotonic() + self._patience_s
        while self._settled < number and self._prepared is None:
            if not self._changed.wait(deadline - time.monotonic()):
                missing = ", ".join(str(w) for w in self._workers if w not in self._parts)
                lost = WorkerLostError(
                    f"push {number}: no part of it has come from worker {missing} for "
                    f"{self._patience_s:g} s; start the job again from its last checkpoint"
                )
                self._refuse(number, lost)
        if self._settled >= number:
            self._raise_if_refused(number)

    def _raise_if_refused(self, number: int) -> None:
        if self._refused is not None and self._refused[0] >= number:
            raise self._refused[1]

    def _refuse(self, number: int, why: Exception) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._do(lambda: self._shard.abort_apply(prepared))
        self._refused = number, why
        self._settle(number)

    def _settle(self, number: int) -> None:
        self._settled = number
        self._parts = {}
        self._aborted_by = set()
        self._changed.notify_all()

    def _do(self, call: Callable[[], _T]) -> _T:
        return self._thread.submit(call).result()
