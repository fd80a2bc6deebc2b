"""Checkpoints that pools have and nothing lists: a process died between the two.

One that was to be the first and was never listed was never called durable: whoever opens the pool
starts anew.
"""

from __future__ import annotations

from pathlib import Path

from embstore.checkpoint.persist.checkpoints import is_checkpoint_directory, listed_ids
from embstore.variable import EmbeddingVariable

__all__ = ["discard_unlisted", "note_directory"]


def note_directory(variable: EmbeddingVariable, path: Path) -> None:
    """Checkpoints of the variable's pools are listed at `path` from now on; durable on return."""
    for shard in variable.internals.shards:
        shard.note_listed_at(str(path))


def discard_unlisted(variable: EmbeddingVariable) -> None:
    """Gives up what the variable's pools have of checkpoints, if none of it was ever listed."""
    waiting = [shard for shard in variable.internals.shards if shard.awaits_restore()]
    noted = {note for shard in waiting if (note := shard.listed_at()) is not None}
    for path in map(Path, noted):
        if not is_checkpoint_directory(path):
            return  # it may be elsewhere, or on a disk that isn't mounted now
        listed = listed_ids(path)
        if any(found.checkpoint_id in listed for shard in waiting for found in shard.persisted()):
            return
    if noted:
        for shard in waiting:
            shard.discard_persisted()
