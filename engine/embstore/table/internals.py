"""The part of a variable that only other modules of embstore use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from embstore import _core
from embstore.errors import ClosedError, ForkedError, InvalidArgumentError
from embstore.optimizers import Optimizer
from embstore.table.guarded_lock import GuardedLock
from embstore.table.prefetched import Prefetched
from embstore.table.shard import LocalShard, Shard

if TYPE_CHECKING:
    from embstore.variable import EmbeddingVariable

__all__ = ["VariableInternals", "between_batches", "shards_of"]


class VariableInternals:
    """A variable's shards, locks and close callbacks. User programs use nothing of it.

    shards: one for each partition, in partition order.
    table: the table of a single shard in this process, for direct calls. None: there are several
        shards, or they are remote.
    is_remote: all shards lie in other processes.
    batch_lock: held while a batch goes to several partitions: all partitions are checked for room
        before the first changes, and the room must stay free. See `between_batches`.
    checkpointing: held during a save, a restore, and other changes of rows except training.
    last_save: the id of the last save or restore, which an incremental save continues; None: there
        is none.
    rate_changes: how often the learning rate was set or restored. A caller that caches the rate
        compares this number, so that it need not ask a remote shard at every step.
    is_shared: other workers of a job train the variable, too.
    before_close, after_close: called by close() before the shards are closed, when they may raise
        errors, and at its end.
    """

    def __init__(self, name: str, optimizer: Optimizer | None, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        only = shards[0] if len(shards) == 1 else None
        self.table = only.table if isinstance(only, LocalShard) else None
        self.is_remote = hasattr(shards[0], "server")
        self.batch_lock = GuardedLock(name)
        self.checkpointing = GuardedLock(name)
        self.last_save: str | None = None
        self.rate_changes = 0
        self.is_shared = False
        self.prefetched = Prefetched()
        self.before_close: list[Callable[[], None]] = []
        self.after_close: list[Callable[[], None]] = []
        self._name = name
        self._optimizer = optimizer
        self._made_in = _core.fork_generation()

    @property
    def can_prefetch(self) -> bool:
        """Whether `EmbeddingVariable.prefetch` has anything to do."""
        return self.is_remote or bool(self.shards_with_hbm())

    def shards_with_hbm(self) -> list[LocalShard]:
        """Returns all shards if each has an HBM tier in this process, else an empty list."""
        shards = [shard for shard in self.shards if isinstance(shard, LocalShard) and shard.gpu]
        return shards if len(shards) == len(self.shards) else []

    def apply_count(self) -> int:
        """Returns the number of applies so far. Asks every shard; a remote one takes a call."""
        return max(shard.apply_count() for shard in self.shards)

    def count_skipped_apply(self) -> None:
        """Counts an apply whose batch is left out, as a batch left out on a GPU is counted. Remote
        shards count only the batches that they get.
        """
        with self.batch_lock:
            for shard in self.shards:
                if isinstance(shard, LocalShard):
                    shard.count_skipped_apply()

    def check_trainable(self) -> Optimizer:
        """Returns the optimizer. Raises InvalidArgumentError if there is none."""
        if self._optimizer is None:
            raise InvalidArgumentError(
                f"{self._name} was made without an optimizer and can't be trained, nor has it a "
                "learning_rate; give get_embedding_variable an optimizer="
            )
        return self._optimizer

    def forget_prefetched(self) -> None:
        """Forgets prefetched rows; called before anything but `apply_gradients` changes rows. Does
        nothing in a forked child: the prefetches belong to the parent.
        """
        if self.is_inherited():
            return
        self.prefetched.forget()
        for shard in self.shards_with_hbm():
            with contextlib.suppress(ClosedError):
                shard.forget_prefetched()

    def forget_evicted(self, least_version: int | None, least_half_square: float | None) -> None:
        """Forgets prefetched rows after another caller has removed rows as `evict` does."""
        if least_version is not None or least_half_square is not None:
            self.prefetched.forget()

    def evict(self, least_version: int | None, least_half_square: float | None) -> int:
        """Removes rows as `Shard.evict` does; returns their number. REQUIRES: checkpointing is
        held.
        """
        if least_version is None and least_half_square is None:
            return 0
        self.prefetched.forget()
        return sum(shard.evict(least_version, least_half_square) for shard in self.shards)

    def is_inherited(self) -> bool:
        """Returns whether this process was forked from the one that made the variable."""
        return _core.fork_generation() != self._made_in

    def refuse_if_forked(self) -> None:
        """Raises ForkedError in a forked child. Called before waiting for a Python lock: a thread
        that doesn't exist in the child may have held it at the fork.
        """
        if self.is_inherited():
            raise ForkedError(
                f"{self._name} belongs to the process that this one was forked from; open it in "
                "the worker, or start workers by spawn"
            )


def shards_of(variables: Iterable[EmbeddingVariable]) -> list[Shard]:
    return [shard for variable in variables for shard in variable.internals.shards]


@contextlib.contextmanager
def between_batches(variables: Iterable[EmbeddingVariable]) -> Iterator[None]:
    """A scope in which all partitions of the variables have had the same batches."""
    with contextlib.ExitStack() as locks:
        for variable in sorted(variables, key=id):  # one order for all threads: no deadlock
            variable.internals.refuse_if_forked()
            locks.enter_context(variable.internals.batch_lock)
        yield
