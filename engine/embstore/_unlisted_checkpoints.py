"""Checkpoints that pools have and nothing lists: a process died between the two.

Beside a pool lies the name of the directory that lists its checkpoints. One that was to be the
first and was never listed was never called durable: whoever opens the pool starts anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from embstore._persisted_checkpoints import is_checkpoint_directory, listed_ids
from embstore._saves import sync
from embstore.errors import StorageError
from embstore.options import TierKind
from embstore.variable import EmbeddingVariable

__all__ = ["discard_unlisted", "note_directory"]


def note_directory(variable: EmbeddingVariable, path: Path) -> None:
    """Checkpoints of the variable's pools are listed at `path` from now on; durable on return."""
    note = _note_of(variable)
    text = os.fsencode(path)
    unfinished = note.with_name(note.name + ".new")
    try:
        if note.exists() and note.read_bytes() == text:
            return
        with unfinished.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(note)
        sync(note.parent)
    except OSError as error:
        raise StorageError(
            f"{error.filename or note}: can't be written: {error.strerror}"
        ) from error


def discard_unlisted(variable: EmbeddingVariable) -> None:
    """Gives up what the variable's pools have of checkpoints, if none of it was ever listed."""
    waiting = [shard for shard in variable._shards if shard.awaits_restore()]
    if not waiting:
        return
    note = _note_of(variable)
    if not note.exists():
        return
    path = Path(os.fsdecode(note.read_bytes()))
    if not is_checkpoint_directory(path):
        return  # it may be elsewhere, or on a disk that isn't mounted now
    listed = listed_ids(path)
    if any(found.checkpoint_id in listed for shard in waiting for found in shard.persisted()):
        return
    for shard in waiting:
        shard.discard_persisted()


def _note_of(variable: EmbeddingVariable) -> Path:
    tiers = variable.ev_option.storage_option.tiers()
    folder = next(tier.path for tier in tiers if tier.kind is TierKind.PMEM_POOL)
    return Path(folder or "") / f"{quote(variable.name, safe='')}.listed-at"
