"""Checkpoints of variables whose rows a durable pool keeps (`StorageOption(durability=...)`).

The rows are in the pools on persistent memory already: a checkpoint marks those of one batch,
writes the few that changed in DRAM, and leaves nothing but what isn't a row at `path`. After a
power cut `restore_persisted` has the table as it was at that batch, without copying a row. A tier
of SSDHASH below the pools takes part: a checkpoint covers its rows too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embstore.checkpoint.arguments import (
    PathLike,
    check_variables,
    checkpoint_locks,
    directory_path,
    least_to_stay,
    saves_waiting_keys,
    step_of,
)
from embstore.checkpoint.persist.checkpoints import checkpoint_path, listed_numbers
from embstore.checkpoint.persist.earlier_runs import waiting_shards
from embstore.checkpoint.persist.restore_plan import plan_restore_persisted
from embstore.checkpoint.persist.writer import PersistWriter, finish_persists, writer_of
from embstore.checkpoint.restore_plan import SaveOnMedium
from embstore.errors import CheckpointError, EmbStoreError, InvalidArgumentError
from embstore.table import checks
from embstore.table.internals import shards_of
from embstore.table.uninterrupted import uninterrupted
from embstore.variable import EmbeddingVariable

__all__ = [
    "discard_persisted",
    "persist",
    "persisted",
    "planned_restore_persisted",
    "restore_persisted",
    "should_persist",
]

MOST_KEPT = 8
MOST_PENDING = 7  # with those that are kept, as many as a pool has room for


@dataclass(frozen=True)
class Checkpoint:
    """number: at its path, where that of one that was given up may be given again. id: its own."""

    number: int
    id: bytes


def persist(
    variables: Sequence[EmbeddingVariable],
    path: PathLike,
    persist_pending_window: int = 0,
    *,
    global_step: int | None = None,
    keep: int = 1,
) -> int:
    """Makes a checkpoint of the variables as they are now, between two batches; returns its id.

    Only what isn't a row is written at `path`: rows that changed since the last checkpoint go to
    their pools, in the background, while look-ups and updates go on.

    path: a directory, made if its parent exists; always the same one for a variable, with all that
        its newest checkpoint has. To go on without some of them, give another; once a checkpoint
        there is durable, those listed here can't be restored any more as a whole.
    persist_pending_window: 0: the checkpoint is durable on return. n > 0: returns at once, unless n
        checkpoints before it are pending still; `persisted(path)` says which are durable.
    global_step: as of `embstore.save`: evict_option drops rows first here, too.
    keep: checkpoints that stay restorable; older ones go when this one is durable. Pools keep the
        rows of each, so that more of them take more room.

    Raises StorageError, which names the file, where something can't be written, now or, if that was
    in the background, of an earlier checkpoint: that one is given up then, and those that were
    durable stay.
    """
    return make_checkpoint(variables, path, persist_pending_window, global_step, keep).number


def make_checkpoint(
    variables: Sequence[EmbeddingVariable],
    path: PathLike,
    persist_pending_window: int,
    global_step: int | None,
    keep: int,
    *,
    counts_when_listed: bool = True,
) -> Checkpoint:
    """As `persist`. counts_when_listed: else `confirm_checkpoint` says that it does: until then
    pools without another may give it up.
    """
    chosen = _durable(variables)
    window = checks.integer(
        "persist_pending_window", persist_pending_window, at_least=0, at_most=MOST_PENDING
    )
    kept = checks.integer("keep", keep, at_least=1, at_most=MOST_KEPT)
    if global_step is not None:
        global_step = checks.integer("global_step", global_step, at_least=0)
    waiting_keys = saves_waiting_keys()
    directory = directory_path(path)
    with checkpoint_locks(chosen), PersistWriter.writing(chosen, directory) as writer:
        writer.wait_until_pending(max(window - 1, 0))
        for variable in chosen:
            variable.internals.evict(*least_to_stay(variable, global_step))
        step = step_of(chosen, global_step)
        with uninterrupted():  # else what was begun would be pending for ever
            checkpoint = writer.begin(chosen, step, waiting_keys=waiting_keys)
            pending = writer.submit(checkpoint, kept, counts_when_listed=counts_when_listed)
    if window == 0:
        try:
            pending.result()
        finally:
            if pending.done():  # else a signal came, and how it went is told by the next
                writer.forget(pending)
    return Checkpoint(checkpoint.number, checkpoint.checkpoint_id)


def give_up_checkpoint(variables: Sequence[EmbeddingVariable], number: int) -> None:
    """Gives up one that `make_checkpoint` made of them, as if it had failed."""
    with checkpoint_locks(list(variables)):
        writer = writer_of(variables[0])
        if writer is not None:
            writer.give_up(number, shards_of(variables))


def confirm_checkpoint(variables: Sequence[EmbeddingVariable]) -> None:
    """The last one that `make_checkpoint` made of them counts."""
    writer = writer_of(variables[0])
    if writer is not None:
        writer.confirm(shards_of(variables))


def persisted(path: PathLike) -> list[int]:
    """The ids of the checkpoints listed at `path`, ascending: each is durable."""
    return listed_numbers(directory_path(path))


def should_persist(variables: Sequence[EmbeddingVariable]) -> bool:
    """Whether a checkpoint costs little now: none is pending, and what is above the pool is full.

    Before that, rows that were just made would be written that may change again soon. Where a tier
    on SSD lies below a pool, also when the pool is about to have no place for rows that change,
    until a checkpoint lets older ones go.
    """
    shards = shards_of(_durable(variables))
    return any(shard.is_pool_short() for shard in shards) or all(
        shard.should_persist() for shard in shards
    )


def restore_persisted(
    variables: Sequence[EmbeddingVariable],
    path: PathLike,
    checkpoint_id: int | None = None,
) -> int:
    """Restores the variables from a checkpoint of their pools: rows, optimizer slots and state,
    frequencies, versions, waiting keys and the learning rate. Returns its global_step.

    Rows stay where they lie in the pools; the time goes with their number. Newer checkpoints than
    this one are given up, those before it stay.

    checkpoint_id: one of `persisted(path)`; the newest by default.

    Raises CheckpointError, which names the file, where the checkpoint isn't whole, or belongs to
    other pools or variables, or is of several partitions and of a version that put keys into
    others; nothing has changed then, unless the message says that a variable is left empty. All of
    them are, then, and take no rows until they are restored or discarded; their checkpoints are all
    there even so.
    """
    chosen = _durable(variables)
    if checkpoint_id is not None:
        checkpoint_id = checks.integer("checkpoint_id", checkpoint_id, at_least=0)
    with (
        checkpoint_locks(chosen),
        planned_restore_persisted(chosen, directory_path(path), checkpoint_id) as carry_out,
    ):
        return carry_out()


@contextlib.contextmanager
def planned_restore_persisted(
    chosen: list[EmbeddingVariable],
    directory: Path,
    checkpoint_id: int | None,
    save_id: str | None = None,
) -> Iterator[Callable[[], int]]:
    """Verifies everything, and gives what then restores the variables, as `restore_persisted` does.

    save_id: that the checkpoint must have.

    REQUIRES: the variables' `checkpoint_locks` are held, so that none of their persists begins. The
    thread that finishes those that have begun takes none of these locks.
    """
    for variable in chosen:
        finish_persists(variable)
    waiting_keys = saves_waiting_keys()
    checkpoint_path(directory, checkpoint_id)  # where there is none, nothing is made either
    with PersistWriter.writing(chosen, directory, restores=True) as writer:
        found = SaveOnMedium.open(checkpoint_path(directory, checkpoint_id))
        if save_id not in (None, found.manifest.save_id):
            raise CheckpointError(
                f"{found.directory}: is another checkpoint of that number than is meant"
            )
        plans = [plan_restore_persisted(variable, found, waiting_keys) for variable in chosen]
        shards = shards_of(chosen)

        def is_held(checkpoint_id: bytes) -> bool:
            return all(
                any(found.checkpoint_id == checkpoint_id for found in shard.persisted())
                for shard in shards
            )

        def carry_out() -> int:
            # Taken off the list before any pool gives them up, which is when all have restored
            # theirs.
            with uninterrupted(), writer.directory.without_newer(found.directory, is_held):
                try:
                    for plan in plans:
                        plan.carry_out()
                except BaseException:
                    for shard in shards:
                        with suppress(EmbStoreError):  # one that is lost
                            shard.await_restore()
                    raise
            writer.covered = frozenset(entry.name for entry in found.manifest.variables)
            writer.drop_unlisted(shards)
            return found.manifest.global_step

        yield carry_out


def discard_persisted(variables: Sequence[EmbeddingVariable]) -> None:
    """Gives up the checkpoints that earlier processes left in the variables' pools.

    Raises InvalidArgumentError for a variable whose pool has none.
    """
    for variable in _durable(variables):
        with checkpoint_locks([variable]):
            waiting = waiting_shards(variable)
            if not waiting:
                raise InvalidArgumentError(
                    f"variables: the pool of {variable.name} holds no checkpoint of an earlier run"
                )
            for shard in waiting:
                shard.discard_persisted()


# --- Arguments


def _durable(variables: Sequence[EmbeddingVariable]) -> list[EmbeddingVariable]:
    chosen = check_variables(variables)
    for variable in chosen:
        if variable.ev_option.storage_option.durability is None:
            raise InvalidArgumentError(
                f"variables: {variable.name} keeps no checkpoints in its tiers; make it with "
                'StorageOption(durability="checkpoint"), or save() it'
            )
    return chosen
