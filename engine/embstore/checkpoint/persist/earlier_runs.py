"""Checkpoints of an earlier run in a variable's pools. The variable has no rows until it is
restored.

A pool may have a checkpoint that no directory lists, if a process died before it was listed. If no
checkpoint of the pool was ever listed, none was reported as durable, and the next process to open
the pool discards it. Once one was listed, the pool discards nothing by itself: the directory that
lists it may have been moved, or be on a disk that isn't mounted now.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from embstore.checkpoint.persist.checkpoints import is_checkpoint_directory, listed_numbers
from embstore.errors import StorageError
from embstore.options import TierKind
from embstore.table.shard import Shard
from embstore.variable import EmbeddingVariable

__all__ = [
    "check_no_earlier_run",
    "check_none_awaits_restore",
    "directory_of_begun_checkpoints",
    "discard_unlisted",
    "shards_awaiting_restore",
]


def check_no_earlier_run(variable: EmbeddingVariable) -> None:
    """Raises StorageError if a pool of the variable has checkpoints of an earlier run."""
    if not shards_awaiting_restore(variable):
        return
    tiers = variable.ev_option.storage_option.tiers()
    place = next(tier.path for tier in tiers if tier.kind is TierKind.PMEM_POOL)
    raise StorageError(
        f"{variable.name}: its pool in {place} holds checkpoints of an earlier run; make the "
        "variable with restores=True, and take them over with embstore.restore_persisted() or "
        "Checkpoints.restore(), or give them up with embstore.discard_persisted()"
    )


def check_none_awaits_restore(variables: Iterable[EmbeddingVariable]) -> None:
    """Raises StorageError if a variable awaits its restore: a save of it would have no rows."""
    for variable in variables:
        if shards_awaiting_restore(variable):
            raise StorageError(
                f"variables: the pool of {variable.name} holds checkpoints of an earlier run; "
                "take them over with restore_persisted(), or give them up with discard_persisted()"
            )


def shards_awaiting_restore(variable: EmbeddingVariable) -> list[Shard]:
    """Returns the shards whose pools have checkpoints that were neither restored nor discarded."""
    if variable.ev_option.storage_option.durability is None:
        return []
    return [shard for shard in variable.internals.shards if shard.awaits_restore()]


def discard_unlisted(variable: EmbeddingVariable) -> None:
    """Discards the checkpoints in the variable's pools, if none of them was ever listed."""
    waiting = shards_awaiting_restore(variable)
    begun = directory_of_begun_checkpoints(waiting)
    if begun is None or listed_numbers(begun):
        return
    for shard in waiting:
        shard.discard_persisted()


def directory_of_begun_checkpoints(waiting: list[Shard]) -> Path | None:
    """Returns the one directory that all checkpoints of these shards' pools were begun for, if none
    of them has counted. Returns None if that isn't certain, or the directory doesn't exist.
    """
    noted = {shard.begun_at() for shard in waiting}
    if len(noted) != 1:
        return None
    (directory,) = noted
    return Path(directory) if directory and is_checkpoint_directory(Path(directory)) else None
