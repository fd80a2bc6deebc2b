"""The tables of a training's checkpoint: tables with durable pools are persisted in place, and
every row of the others is saved.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from embstore.checkpoint.arguments import checkpoint_locks
from embstore.checkpoint.persist.checkpoints import remove_list
from embstore.checkpoint.persist.earlier_runs import (
    directory_of_begun_checkpoints,
    shards_awaiting_restore,
)
from embstore.checkpoint.persist.persisting import (
    confirm_checkpoint,
    discard_persisted,
    give_up_checkpoint,
    make_checkpoint,
    planned_restore_persisted,
)
from embstore.checkpoint.restore import planned_restore
from embstore.checkpoint.save import save_outside_chain
from embstore.checkpoint.training.directory import (
    PoolCheckpoint,
    TrainingCheckpoint,
    TrainingDirectory,
)
from embstore.errors import CheckpointError
from embstore.table.retry import retry_while_in_use
from embstore.table.uninterrupted import uninterrupted
from embstore.variable import EmbeddingVariable

__all__ = ["restore_tables", "split_by_durability", "writing_checkpoint"]

# A process that was killed may hold the pools' list for some seconds.
_FREED_WITHIN_S = 30.0


@contextlib.contextmanager
def writing_checkpoint(
    directory: TrainingDirectory,
    variables: Sequence[EmbeddingVariable],
    step: int,
    publish: Callable[[Path, int], None],
) -> Iterator[Path]:
    """Saves the tables, then yields the folder for the program's files. On leaving, makes all of it
    durable and calls `publish`. If anything fails, the checkpoint is removed.
    """
    unpublished = directory.begin()
    pools: PoolCheckpoint | None = None
    try:
        pools = _save_tables(unpublished, directory.pools, variables, step, directory.keep)
        yield unpublished.path
        directory.finish(unpublished, step, pools)
        publish(unpublished.folder, step)
        if pools is not None:
            confirm_checkpoint(split_by_durability(variables)[0])
    except BaseException:
        is_unpublished = unpublished.folder.exists()
        shutil.rmtree(unpublished.folder, ignore_errors=True)
        if pools is not None and is_unpublished:
            # The unpublished checkpoint would take one of the `keep` places in the pools.
            give_up_checkpoint(split_by_durability(variables)[0], pools.number)
        raise


def _save_tables(
    unpublished: TrainingCheckpoint,
    pools: Path,
    variables: Sequence[EmbeddingVariable],
    step: int,
    keep: int,
) -> PoolCheckpoint | None:
    """Saves or persists the tables. pools: the directory that lists the pools' checkpoints. keep:
    number of checkpoints that are kept.
    """
    durable, others = split_by_durability(variables)
    if others:
        # May be removed before the program's own saves.
        save_outside_chain(unpublished.tables, others, step)
    if not durable:
        return None
    # Keeps one more, so that no older checkpoint is dropped before this one is published.
    checkpoint = retry_while_in_use(
        lambda: make_checkpoint(durable, pools, 0, step, keep + 1, counts_when_listed=False),
        _FREED_WITHIN_S,
    )
    places = {
        variable.name: [shard.place for shard in variable.internals.shards] for variable in durable
    }
    return PoolCheckpoint(checkpoint.number, checkpoint.id.hex(), places)


def restore_tables(
    checkpoint: TrainingCheckpoint | None, pools: Path, variables: Sequence[EmbeddingVariable]
) -> None:
    """Restores the variables from a checkpoint. None: there is none yet, so they start anew."""
    durable, others = split_by_durability(variables)
    if checkpoint is None:
        _discard_unpublished(durable, pools)
        return
    pool_checkpoint = checkpoint.pool_checkpoint()
    if durable and pool_checkpoint is None:
        raise CheckpointError(
            f"{checkpoint.folder}: was made of variables without durable pools; give these a "
            "storage_option without durability, or the job another folder for its checkpoints"
        )
    restores: list[Callable[[], int]] = []
    with checkpoint_locks(variables), contextlib.ExitStack() as planned:
        # Verifies everything before any table changes.
        if others:
            restores.append(planned.enter_context(planned_restore(checkpoint.tables, others)))
        if durable and pool_checkpoint is not None:
            number, save_id = pool_checkpoint.number, pool_checkpoint.id
            restores.append(
                retry_while_in_use(
                    lambda: planned.enter_context(
                        planned_restore_persisted(durable, pools, number, save_id)
                    ),
                    _FREED_WITHIN_S,
                )
            )
        with uninterrupted():
            for carry_out in restores:
                carry_out()
    for variable in others:
        variable.internals.last_save = None  # the program's own saves can't follow this one


def _discard_unpublished(durable: Sequence[EmbeddingVariable], pools: Path) -> None:
    """Discards the pools' checkpoints of a job that died before it published its first one. Other
    checkpoints stay, and raise errors when the variables are used.
    """
    waiting = {
        variable: found for variable in durable if (found := shards_awaiting_restore(variable))
    }
    if waiting and all(
        directory_of_begun_checkpoints(shards) == pools for shards in waiting.values()
    ):
        retry_while_in_use(
            lambda: remove_list(pools), _FREED_WITHIN_S
        )  # before the pools drop them
        discard_persisted([*waiting])


def split_by_durability(
    variables: Sequence[EmbeddingVariable],
) -> tuple[list[EmbeddingVariable], list[EmbeddingVariable]]:
    durable = [v for v in variables if v.ev_option.storage_option.durability is not None]
    return durable, [variable for variable in variables if variable not in durable]
