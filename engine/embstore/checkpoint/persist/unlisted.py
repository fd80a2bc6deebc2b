"""Checkpoints that pools have and nothing lists: a process died between the two.

One that was to be the first and was never listed was never called durable: whoever opens the pool
starts anew. It was to be the first of its directory, too, so where that lists any, this one may
have been listed once.
"""

from __future__ import annotations

from pathlib import Path

from embstore.checkpoint.persist.checkpoints import is_checkpoint_directory, listed_numbers
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
        # Else it may be elsewhere, or on a disk that isn't mounted now.
        if not is_checkpoint_directory(path) or listed_numbers(path):
            return
    if noted:
        for shard in waiting:
            shard.discard_persisted()
