"""The pushes to a server's tables: each is applied once, when every worker's part of it is there.

A push is one batch of gradients of one table. Its parts are joined in the workers' order, so the
rows have the same bits whichever worker is faster. A part that is sent again because its worker did
not get the answer gets the same answer, and isn't applied again.

A worker may send the parts of many tables' pushes at once, and then waits for the other workers
only once. Each table's push is still prepared and applied by itself.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from embstore import _core
from embstore.errors import ClosedError, EmbStoreError, InvalidArgumentError, WorkerLostError
from embstore.table.several_shards import (
    GradientPart,
    Prepared,
    commit_together,
    prepare_together,
)
from embstore.table.shard import LocalShard

__all__ = ["PushPart", "PushRules", "Pushes", "Refusals"]

_T = TypeVar("_T")

Refusals: TypeAlias = "list[Exception | None]"  # for each part, why it was refused, or None


@dataclass(frozen=True)
class PushRules:
    """The rules by which the parts of workers make a push.

    workers: number of workers, whose numbers start from 0.
    is_synchronous: True: a push has a part of each worker; False: a push has one worker's part.
    is_mean: True: gradients are the mean of the workers' gradients, as if they had computed the
        mean loss of one batch together; False: they are the sum.
    patience_s: seconds that a part waits for those of the other workers.
    """

    workers: int = 1
    is_synchronous: bool = True
    is_mean: bool = True
    patience_s: float = 300.0


class PushPart(NamedTuple):
    """A worker's part of a push. The arrays must not change until the push is settled."""

    table: int
    number: int
    gradients: GradientPart


class _PushThread:
    """A thread that prepares pushes, and commits or aborts those that it has prepared."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "embstore-push")
        self.open_pushes = 0  # number of pushes that it has yet to end; guarded by Pushes' lock

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        return self._executor.submit(call)

    def run(self, call: Callable[[], _T]) -> _T:
        return self._executor.submit(call).result()

    def close(self) -> None:
        self._executor.shutdown(wait=False)


@dataclass(frozen=True)
class _Push:
    """A prepared push. thread: the one that prepared it, and must end it."""

    thread: _PushThread
    prepared: Prepared


class _RefusedRange(NamedTuple):
    """The pushes numbered `first` to `last`, which were all refused. reason: the last push's."""

    first: int
    last: int
    reason: Exception


@dataclass(eq=False)
class _Sequence:
    """The pushes of the same workers to one table, one after the other."""

    shard: LocalShard
    workers: Sequence[int]
    is_closed: bool = False
    settled: int = 0  # the number of the last push that was applied, refused or given up
    refused: _RefusedRange | None = None  # the last refused pushes
    is_given_up: bool = False  # whether workers gave up the last one refused
    parts: dict[int, PushPart] = field(default_factory=dict)  # by worker, of push settled + 1
    prepared: _Push | None = None  # push settled + 1, once prepared
    prepared_at: float = 0.0  # time.monotonic() at which it was
    is_busy: bool = False  # whether a thread prepares or applies it
    aborted_by: set[int] = field(default_factory=set)  # workers that have aborted it
    pending_aborts: list[Future[None]] = field(default_factory=list)  # aborts that are under way

    @property
    def is_complete(self) -> bool:
        return len(self.parts) == len(self.workers)

    def refusal_of(self, number: int) -> Exception | None:
        refused = self.refused
        if refused is None or not refused.first <= number <= refused.last:
            return None
        return refused.reason

    def refuse(self, number: int, reason: Exception) -> None:
        """Settles all pushes up to `number`. Pushes that were refused right before them stay
        refused: a worker that got no answer sends its push again.
        """
        first = self.settled + 1
        if self.refused is not None and self.refused.last == self.settled:
            first = self.refused.first
        self.refused, self.is_given_up = _RefusedRange(first, number, reason), False
        self.settle(number)

    def settle(self, number: int) -> None:
        self.settled = number
        self.parts = {}
        self.aborted_by = set()


class Pushes:
    """The pushes to one server's tables. Any number of threads may call at once, each for another
    worker.

    The lock isn't held while a push is prepared, applied or aborted: in a shard that is nearly
    full, a push waits for another one to end.
    """

    def __init__(self, rules: PushRules) -> None:
        self._rules = rules
        self._scale = 1 / rules.workers if rules.is_mean else 1.0
        self._closing = threading.Event()
        self._changed = threading.Condition()
        # Guarded by it:
        self._tables: dict[int, list[_Sequence]] = {}  # by table, then worker
        self._returned: set[int] = set()  # workers
        self._idle: list[_PushThread] = []
        self._is_closed = False
        if not rules.is_synchronous and rules.workers > 1:
            threading.Thread(
                target=self._refuse_overdue, name="embstore-overdue", daemon=True
            ).start()

    def add(self, table: int, shard: LocalShard) -> None:
        workers = range(self._rules.workers)
        shared = _Sequence(shard, workers) if self._rules.is_synchronous else None
        with self._changed:
            self._tables[table] = [shared or _Sequence(shard, (worker,)) for worker in workers]

    def prepare(self, worker: int, parts: Sequence[PushPart]) -> Refusals:
        """Returns when every push is complete and can't fail any more, or is refused: by the shard,
        or with WorkerLostError if another worker's part doesn't come. A refused push is over for
        all workers.
        """
        refusals: Refusals = [None] * len(parts)
        waiting: list[tuple[int, _Sequence]] = []
        complete: list[_Sequence] = []
        with self._changed:
            # All threads take the tables in one order: a shard that is nearly full holds one push
            # at a time.
            for i in sorted(range(len(parts)), key=lambda i: parts[i].table):
                part = parts[i]
                try:
                    sequence = self._sequence_of(worker, part.table)
                    self._wait_for_aborted_push(sequence, worker, part.number)
                    self._advance_to(sequence, worker, part.number)
                except EmbStoreError as error:
                    refusals[i] = error
                else:
                    waiting.append((i, sequence))
            for i, sequence in waiting:
                if parts[i].number > sequence.settled and sequence.prepared is None:
                    sequence.parts.setdefault(worker, parts[i])
                    if sequence.is_complete and not sequence.is_busy:
                        sequence.is_busy = True
                        complete.append(sequence)
        if complete:
            self._prepare_complete(complete)
        with self._changed:
            self._wait_for_others([(sequence, parts[i].number) for i, sequence in waiting])
            for i, sequence in waiting:
                if parts[i].number <= sequence.settled:
                    refusals[i] = sequence.refusal_of(parts[i].number)
            given_up = [i for i, sequence in waiting if refusals[i] and sequence.is_given_up]
        if len(given_up) < sum(refusal is not None for refusal in refusals):
            for i in given_up:  # another one was refused, so the worker sends these again
                refusals[i] = None
        return refusals

    def commit(
        self, worker: int, pushes: Sequence[tuple[int, int]], global_step: int | None
    ) -> Refusals:
        """Applies pushes that every shard has prepared. The first worker's commit does it for all.

        pushes: the table and the number of each.
        """
        refusals: Refusals = [None] * len(pushes)
        waiting: list[tuple[int, _Sequence]] = []
        by_thread: defaultdict[_PushThread, list[tuple[_Sequence, Prepared]]] = defaultdict(list)
        with self._changed:
            for i, (table, number) in enumerate(pushes):
                try:
                    sequence = self._sequence_of(worker, table)
                    push = self._push_to_commit(sequence, number)
                except EmbStoreError as error:
                    refusals[i] = error
                    continue
                waiting.append((i, sequence))
                if push is not None:
                    sequence.prepared, sequence.is_busy = None, True
                    by_thread[push.thread].append((sequence, push.prepared))
        for thread, prepared_pushes in by_thread.items():
            self._commit_all(thread, prepared_pushes, global_step)
        with self._changed:
            for i, sequence in waiting:
                number = pushes[i][1]
                self._changed.wait_for(lambda s=sequence, n=number: s.settled >= n)  # type: ignore[misc]
                refusals[i] = sequence.refusal_of(number)
        return refusals

    def abort(self, worker: int, pushes: Sequence[tuple[int, int]]) -> Refusals:
        """Gives up pushes that a shard has refused, or that the worker doesn't want any more.

        A push that is prepared here may have been applied elsewhere, by a worker that found it
        prepared everywhere; that worker's commit then comes here too. So a prepared push is over
        only when all workers have aborted it. On return, aborted pushes hold no place in a shard
        any more.
        """
        refusals: Refusals = [None] * len(pushes)
        pending_aborts: list[Future[None]] = []
        with self._changed:
            for i, (table, number) in enumerate(pushes):
                try:
                    sequence = self._sequence_of(worker, table)
                except EmbStoreError as error:
                    refusals[i] = error
                    continue
                if number > sequence.settled:
                    sequence.aborted_by.add(worker)
                    self._refuse_if_given_up(sequence, number)
                pending_aborts += sequence.pending_aborts
        for abort in pending_aborts:
            abort.result()
        return refusals

    def wait_until_settled(self, worker: int, table: int, number: int) -> None:
        """Returns when the push is over, whether it was applied or refused."""
        deadline = time.monotonic() + self._rules.patience_s
        with self._changed:
            sequence = self._sequence_of(worker, table)
            while sequence.settled < number:
                if sequence.is_closed or not self._changed.wait(deadline - time.monotonic()):
                    raise WorkerLostError(f"push {number} hasn't come")

    def note_returned(self, worker: int) -> None:
        """Records that the worker sends no more pushes, so that no thread waits for them."""
        with self._changed:
            self._returned.add(worker)
            self._changed.notify_all()

    def are_settled(self, worker: int, pushes: Sequence[tuple[int, int]]) -> bool:
        """Returns whether all these pushes are over. pushes: the table and the number of each."""
        with self._changed:
            return all(
                worker >= len(sequences := self._tables.get(table, ()))
                or sequences[worker].settled >= number
                for table, number in pushes
            )

    def give_up(self, table: int) -> None:
        """Refuses the table's pushes that aren't applied yet, and releases all that they hold."""
        pending_aborts: list[Future[None]] = []
        with self._changed:
            for sequence in set(self._tables.get(table, ())):
                self._changed.wait_for(lambda s=sequence: not s.is_busy)  # type: ignore[misc]
                if sequence.parts or sequence.prepared is not None:
                    number = sequence.settled + 1
                    self._refuse(sequence, number, ClosedError("the shard was closed"))
                pending_aborts += sequence.pending_aborts
        for abort in pending_aborts:
            abort.result()

    def remove(self, table: int) -> None:
        """Forgets the table of a shard that is closed."""
        self.give_up(table)
        with self._changed:
            for sequence in self._tables.pop(table, ()):
                sequence.is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        for table in list(self._tables):
            self.remove(table)
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
        self._closing.set()
        for thread in idle:
            thread.close()

    def _refuse_overdue(self) -> None:
        """Refuses pushes that a dead worker has left prepared, for whose shards other workers wait.
        (If pushes have a part of each worker, any worker can end them.)
        """
        patience_s = self._rules.patience_s
        next_s = patience_s
        while not self._closing.wait(next_s):
            next_s = patience_s
            now = time.monotonic()
            with self._changed:
                for sequence in (each for table in self._tables.values() for each in table):
                    if sequence.prepared is None:
                        continue
                    left_s = sequence.prepared_at + patience_s - now
                    if left_s <= 0:
                        (worker,) = sequence.workers
                        number = sequence.settled + 1
                        lost = WorkerLostError(
                            f"push {number}: worker {worker} has neither committed nor aborted it "
                            f"for {patience_s:g} s; start the job again from its last checkpoint"
                        )
                        self._refuse(sequence, number, lost)
                    else:
                        next_s = min(next_s, left_s)

    # --- With the lock held

    def _sequence_of(self, worker: int, table: int) -> _Sequence:
        if worker >= self._rules.workers:
            raise InvalidArgumentError(
                f"worker {worker} pushes to a shard that was opened for {self._rules.workers}; "
                "give all workers the same number of them"
            )
        if table not in self._tables:
            raise ClosedError("the shard is closed")
        return self._tables[table][worker]

    def _wait_for_aborted_push(self, sequence: _Sequence, worker: int, number: int) -> None:
        """Waits until the other workers have aborted the push too, or have committed it."""
        deadline = time.monotonic() + self._rules.patience_s
        while (
            worker in sequence.aborted_by
            and number == sequence.settled + 2
            and not sequence.is_closed
        ):
            if not self._changed.wait(deadline - time.monotonic()):
                raise WorkerLostError(
                    f"push {number - 1}: another worker neither commits nor aborts it for "
                    f"{self._rules.patience_s:g} s; start the job again from its last checkpoint"
                )

    def _advance_to(self, sequence: _Sequence, worker: int, number: int) -> None:
        """Makes push `number` the next, unless it is settled: refuses earlier interrupted ones."""
        while True:
            if sequence.is_closed:
                raise ClosedError("the shard is closed")
            after = sequence.settled + 1
            if number <= after:
                return
            if len(sequence.workers) > 1:
                raise InvalidArgumentError(
                    f"worker {worker} is at push {number}, and the shard at {after}: all workers "
                    "must train the same variables in the same order"
                )
            # The worker was interrupted in earlier pushes, and continues with this one.
            if not sequence.is_busy:
                self._refuse(sequence, number - 1, EmbStoreError("its worker gave it up"))
                return
            self._changed.wait()

    def _push_to_commit(self, sequence: _Sequence, number: int) -> _Push | None:
        """Returns the prepared push; None if it is over, or another worker's commit applies it."""
        if number <= sequence.settled:
            return None
        if number == sequence.settled + 1:
            if sequence.prepared is not None:
                return sequence.prepared
            if sequence.is_busy:
                return None
        raise InvalidArgumentError(f"push {number} is committed, and wasn't prepared")

    def _wait_for_others(self, pushes: Sequence[tuple[_Sequence, int]]) -> None:
        deadline = time.monotonic() + self._rules.patience_s
        for sequence, number in pushes:
            while sequence.settled < number and sequence.prepared is None:
                if sequence.is_busy:
                    self._changed.wait()
                    continue
                missing = [worker for worker in sequence.workers if worker not in sequence.parts]
                has_returned = not self._returned.isdisjoint(missing)
                if has_returned or not self._changed.wait(deadline - time.monotonic()):
                    message = f"push {number}: no part of it has come from worker "
                    message += ", ".join(map(str, missing))
                    message += (
                        ", which has returned"
                        if has_returned
                        else f" for {self._rules.patience_s:g} s; start the job again from its "
                        "last checkpoint"
                    )
                    self._refuse(sequence, number, WorkerLostError(message))

    def _refuse_if_given_up(self, sequence: _Sequence, number: int) -> None:
        """Refuses the push if one worker has aborted it, or all after it began to be prepared."""
        is_prepared = sequence.prepared is not None or sequence.is_busy
        is_aborted_by_all = len(sequence.aborted_by) == len(sequence.workers)
        if sequence.aborted_by and not sequence.is_busy and (is_aborted_by_all or not is_prepared):
            given_up = EmbStoreError(f"push {number} was given up by a worker")
            self._refuse(sequence, number, given_up)
            sequence.is_given_up = True

    def _refuse(self, sequence: _Sequence, number: int, reason: Exception) -> None:
        push, sequence.prepared = sequence.prepared, None
        if push is not None:
            sequence.pending_aborts = [end for end in sequence.pending_aborts if not end.done()]
            sequence.pending_aborts.append(push.thread.submit(push.prepared.abort))
            self._count_ended_push(push.thread)
        sequence.refuse(number, reason)
        self._changed.notify_all()

    def _count_ended_push(self, thread: _PushThread) -> None:
        """Counts one push of the thread that is over."""
        thread.open_pushes -= 1
        if thread.open_pushes == 0:
            if self._is_closed:
                thread.close()
            else:
                self._idle.append(thread)

    # --- Without the lock held

    def _prepare_complete(self, complete: Sequence[_Sequence]) -> None:
        with self._changed:
            thread = self._idle.pop() if self._idle else _PushThread()
        batches = [
            (sequence.shard, [sequence.parts[w].gradients for w in sequence.workers])
            for sequence in complete
        ]
        results: Sequence[Prepared | Exception]
        try:
            results = thread.run(lambda: prepare_together(batches, self._scale))
        except Exception as error:  # caused by the arguments
            results = [error] * len(complete)
        with self._changed:
            thread.open_pushes += 1  # keeps the thread until all pushes are recorded
            for sequence, prepared in zip(complete, results, strict=True):
                sequence.is_busy = False
                if isinstance(prepared, Exception):
                    self._refuse(sequence, sequence.settled + 1, prepared)
                else:
                    thread.open_pushes += 1
                    sequence.prepared = _Push(thread, prepared)
                    sequence.prepared_at = time.monotonic()
                    if len(sequence.aborted_by) == len(sequence.workers):
                        self._refuse_if_given_up(sequence, sequence.settled + 1)
            self._count_ended_push(thread)
            self._changed.notify_all()

    def _commit_all(
        self,
        thread: _PushThread,
        prepared_pushes: Sequence[tuple[_Sequence, Prepared]],
        global_step: int | None,
    ) -> None:
        def apply() -> None:
            commit_together([prepared for _, prepared in prepared_pushes], global_step)
            _core.pay_pacing_debt()  # not part of a commit, since that may be one of several

        failed: Exception | None = None
        try:
            thread.run(apply)
        except Exception as error:  # a defect; the other workers must not wait for it
            failed = error
            raise
        finally:
            with self._changed:
                for sequence, _ in prepared_pushes:
                    sequence.is_busy = False
                    if failed is not None:
                        sequence.refuse(sequence.settled + 1, failed)
                    else:
                        sequence.settle(sequence.settled + 1)
                    self._count_ended_push(thread)
                self._changed.notify_all()
