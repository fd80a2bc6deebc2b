"""Checkpoints that pools have and nothing lists: a process died between the two.

The first one, if it was never listed, was never called durable: whoever opens the pool starts anew.
Once one was, no pool gives anything up by itself: what lists it may have been moved, or be on a
disk that isn't mounted now.
"""

from __future__ import annotations

from pathlib import Path

from embstore.checkpoint.persist.checkpoints import is_checkpoint_directory, listed_numbers
from embstore.checkpoint.persist.earlier_runs import waiting_shards
from embstore.table.shard import Shard
from embstore.variable import EmbeddingVariable

__all__ = ["begun_for", "discard_unlisted"]


def discard_unlisted(variable: EmbeddingVariable) -> None:
    """Gives up what the variable's pools have of checkpoints, if none of it ever counted."""
    waiting = waiting_shards(variable)
    begun = begun_for(waiting)
    if begun is None or listed_numbers(begun):
        return
    for shard in waiting:
        shard.discard_persisted()


def begun_for(waiting: list[Shard]) -> Path | None:
    """The directory for which the pools of these shards have begun all of their checkpoints, where
    none has counted. None: that isn't sure, or it isn't there.
    """
    noted = {shard.begun_at() for shard in waiting}
    if len(noted) != 1:
        return None
    (directory,) = noted
    return Path(directory) if directory and is_checkpoint_directory(Path(directory)) else None
