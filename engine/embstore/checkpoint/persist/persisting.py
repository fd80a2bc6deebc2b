"""Checkpoints of variables whose rows a durable pool keeps (`StorageOption(durability=...)`).

The rows are in the pools on persistent memory already: a checkpoint marks the rows as of one batch,
writes to the pools the few that changed in DRAM, and writes only the other state to files at
`path`. After a power cut `restore_persisted` brings the table back as of that batch, without
copying a row. A tier of SSDHASH below the pools takes part: a checkpoint covers its rows too.
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
    checkpoint_step,
    directory_path,
    eviction_limits,
    saves_waiting_keys,
)
from embstore.checkpoint.persist.checkpoints import checkpoint_path, listed_numbers
from embstore.checkpoint.persist.earlier_runs import shards_awaiting_restore
from embstore.checkpoint.persist.writer import PersistWriter, finish_persists, writer_of
from embstore.checkpoint.restore_plan import (
    RestorePlan,
    SaveOnMedium,
    check_sketches,
    verified_files,
)
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

MAX_KEPT = 8
MAX_PENDING = 7  # with the kept ones, as many checkpoints as a pool has room for


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of pools. number: in its directory; the number of a checkpoint that was given up
    may be used again. id: unique.
    """

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

    Rows that changed since the last checkpoint are written to their pools, in the background, while
    look-ups and updates go on; all other state is written to files at `path`.

    path: a directory, made if its parent exists. Every call must name the same path and all
        variables of its newest checkpoint. To continue without some of them, give another path;
        once a checkpoint is durable there, the older path's can't be restored as a whole any more.
    persist_pending_window: 0: the checkpoint is durable on return. n > 0: returns at once, unless n
        earlier checkpoints are still pending; `persisted(path)` lists the durable ones.
    global_step: as in `embstore.save`; evict_option first drops rows here, too.
    keep: number of checkpoints that stay restorable; older ones are dropped when this one is
        durable. Pools keep the rows of each, so more checkpoints take more room.

    Raises StorageError, which names the file, if something can't be written, now or in the
    background for an earlier checkpoint. The failed checkpoint is given up, and durable ones stay.
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
    """Makes a checkpoint as `persist` does. counts_when_listed: False: the checkpoint counts only
    once `confirm_checkpoint` is called; until then, pools that have no other may discard it.
    """
    chosen = _check_durable(variables)
    window = checks.integer(
        "persist_pending_window", persist_pending_window, at_least=0, at_most=MAX_PENDING
    )
    keep_count = checks.integer("keep", keep, at_least=1, at_most=MAX_KEPT)
    if global_step is not None:
        global_step = checks.integer("global_step", global_step, at_least=0)
    waiting_keys = saves_waiting_keys()
    directory = directory_path(path)
    with checkpoint_locks(chosen), PersistWriter.writing(chosen, directory) as writer:
        writer.wait_until_pending(max(window - 1, 0))
        for variable in chosen:
            variable.internals.evict(*eviction_limits(variable, global_step))
        step = checkpoint_step(chosen, global_step)
        with uninterrupted():  # a signal in between would leave the checkpoint pending for ever
            checkpoint = writer.begin(chosen, step, waiting_keys=waiting_keys)
            pending = writer.submit(checkpoint, keep_count, counts_when_listed=counts_when_listed)
    if window == 0:
        try:
            pending.result()
        finally:
            if pending.done():  # else a signal came, and the next call raises its error
                writer.forget(pending)
    return Checkpoint(checkpoint.number, checkpoint.checkpoint_id)


def give_up_checkpoint(variables: Sequence[EmbeddingVariable], number: int) -> None:
    """Gives up a checkpoint that `make_checkpoint` made of the variables, as if it had failed."""
    with checkpoint_locks(list(variables)):
        writer = writer_of(variables[0])
        if writer is not None:
            writer.give_up(number, shards_of(variables))


def confirm_checkpoint(variables: Sequence[EmbeddingVariable]) -> None:
    """Makes the last checkpoint count that `make_checkpoint` made of the variables."""
    writer = writer_of(variables[0])
    if writer is not None:
        writer.confirm(shards_of(variables))


def persisted(path: PathLike) -> list[int]:
    """Returns the ids of the checkpoints listed at `path`, ascending; each is durable."""
    return listed_numbers(directory_path(path))


def should_persist(variables: Sequence[EmbeddingVariable]) -> bool:
    """Returns whether now is a good time for a checkpoint: none is pending, and the tiers above the
    pool are full.

    Before the tiers are full, a checkpoint would write new rows that may soon change again. If a
    tier on SSD lies below a pool, also returns True when the pool runs out of places for changed
    rows, which only a checkpoint frees.
    """
    shards = shards_of(_check_durable(variables))
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

    Rows stay in place in the pools; the time is proportional to their number. Newer checkpoints
    than this one are discarded, older ones stay.

    checkpoint_id: one of `persisted(path)`; the newest by default.

    Raises CheckpointError, which names the file, if the checkpoint isn't whole, belongs to other
    pools or variables, or has several partitions and comes from an earlier version, which spread
    keys over partitions differently. Nothing has changed then, unless the message says that a
    variable is left empty. In that case all variables are empty, and take no rows until they are
    restored or discarded; all their checkpoints are still there.
    """
    chosen = _check_durable(variables)
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
    """Verifies everything, and yields a function that restores the variables as `restore_persisted`
    does.

    save_id: the id that the checkpoint must have; None: any.

    REQUIRES: the variables' `checkpoint_locks` are held, so that no persist of them begins. The
    thread that finishes begun persists takes none of these locks.
    """
    for variable in chosen:
        finish_persists(variable)
    waiting_keys = saves_waiting_keys()
    checkpoint_path(directory, checkpoint_id)  # raises before the writer would make the directory
    with PersistWriter.writing(chosen, directory, restores=True) as writer:
        found = SaveOnMedium.open(checkpoint_path(directory, checkpoint_id))
        if save_id not in (None, found.manifest.save_id):
            raise CheckpointError(
                f"{found.directory}: is another checkpoint of that number than is meant"
            )
        plans = [_plan_restore(variable, found, waiting_keys) for variable in chosen]
        shards = shards_of(chosen)

        def is_held(checkpoint_id: bytes) -> bool:
            return all(
                any(found.checkpoint_id == checkpoint_id for found in shard.persisted())
                for shard in shards
            )

        def carry_out() -> int:
            # Newer checkpoints are taken off the list before any pool drops them, which it may only
            # do once all pools are restored.
            with uninterrupted(), writer.directory.without_newer(found.directory, is_held):
                try:
                    for plan in plans:
                        plan.carry_out()
                except BaseException:
                    for shard in shards:
                        with suppress(EmbStoreError):  # a shard may be lost
                            shard.await_restore()
                    raise
            writer.covered = frozenset(entry.name for entry in found.manifest.variables)
            writer.drop_unlisted(shards)
            return found.manifest.global_step

        yield carry_out


def _plan_restore(
    variable: EmbeddingVariable, found: SaveOnMedium, waiting_keys: bool
) -> RestorePlan:
    entry = found.entry_of(variable)
    if (entry.dim, entry.partition_num) != (variable.dim, variable.partition_num):
        raise CheckpointError(
            f"{found.directory}: {variable.name} had dim {entry.dim} and partition_num "
            f"{entry.partition_num}, but has {variable.dim} and {variable.partition_num} now; "
            "rows in a pool stay as they are (es.save() and es.restore() change them)"
        )
    verified = verified_files(variable, found, entry)
    if not all(file["is_placed_by_hash"] for file in verified):
        raise CheckpointError(
            f"{found.directory}: {variable.name} was persisted by an earlier version, "
            f"which put key k into partition k modulo {entry.partition_num}, and rows in a "
            "pool stay where they are; with that version es.save() it, and es.restore() "
            "the save here"
        )
    if waiting_keys:
        check_sketches(variable, found, verified)
    checkpoint_id = bytes.fromhex(found.manifest.save_id)
    numbers = []
    for shard in variable.internals.shards:
        pool_numbers = {part.checkpoint_id: part.number for part in shard.persisted()}
        if checkpoint_id not in pool_numbers:
            pool = shard.stats()["tiers"][1]["path"]
            raise CheckpointError(
                f"{found.directory}: its rows of {variable.name} aren't in {pool}; is that "
                "another pool, or was it given up?"
            )
        numbers.append(pool_numbers[checkpoint_id])
    return RestorePlan(variable, found, entry, [found.paths(entry)], waiting_keys, numbers)


def discard_persisted(variables: Sequence[EmbeddingVariable]) -> None:
    """Discards the checkpoints that earlier processes left in the variables' pools.

    Raises InvalidArgumentError for a variable whose pool has none.
    """
    for variable in _check_durable(variables):
        with checkpoint_locks([variable]):
            waiting = shards_awaiting_restore(variable)
            if not waiting:
                raise InvalidArgumentError(
                    f"variables: the pool of {variable.name} holds no checkpoint of an earlier run"
                )
            for shard in waiting:
                shard.discard_persisted()


# --- Arguments


def _check_durable(variables: Sequence[EmbeddingVariable]) -> list[EmbeddingVariable]:
    chosen = check_variables(variables)
    for variable in chosen:
        if variable.ev_option.storage_option.durability is None:
            raise InvalidArgumentError(
                f"variables: {variable.name} keeps no checkpoints in its tiers; make it with "
                'StorageOption(durability="checkpoint"), or save() it'
            )
    return chosen
