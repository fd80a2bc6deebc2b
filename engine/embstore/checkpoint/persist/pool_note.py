"""Notes beside a pool that name the directory of its checkpoints: the file `POOL.begun-at` while no
checkpoint has counted yet, and `POOL.listed-at` from the first that has.
"""

from __future__ import annotations

import os
from pathlib import Path

from embstore.files import read_file, replace_file, writing_to

__all__ = ["begun_at", "forget_notes", "note_begun", "note_listed"]


def note_begun(pool: str, directory: str) -> None:
    """Notes that `directory` is where checkpoints of the pool are begun; durable on return."""
    if not _listed(pool).exists():
        _write(_begun(pool), directory)


def note_listed(pool: str, directory: str) -> None:
    """Notes that a checkpoint listed in `directory` counts, and so stays in the pool even if the
    directory is lost; durable on return.
    """
    _write(_listed(pool), directory)
    with writing_to(_begun(pool)):
        _begun(pool).unlink(missing_ok=True)


def forget_notes(pool: str) -> None:
    """Removes the notes of a pool that has no checkpoint any more."""
    for note in (_listed(pool), _begun(pool)):
        with writing_to(note):
            note.unlink(missing_ok=True)


def begun_at(pool: str) -> str | None:
    """Returns the directory noted by note_begun(). None: a checkpoint of the pool has counted, or
    nothing was noted.
    """
    note = _begun(pool)
    if _listed(pool).exists() or not note.exists():
        return None
    return os.fsdecode(read_file(note))


def _write(note: Path, directory: str) -> None:
    text = os.fsencode(directory)
    with writing_to(note):
        if note.exists() and read_file(note) == text:
            return
    replace_file(note, text)


def _begun(pool: str) -> Path:
    return Path(f"{pool}.begun-at")


def _listed(pool: str) -> Path:
    return Path(f"{pool}.listed-at")
