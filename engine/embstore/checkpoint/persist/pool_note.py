"""Beside a pool lies the name of the directory of its checkpoints: `POOL.begun-at` while none of
them has counted yet, and `POOL.listed-at` since one has.
"""

from __future__ import annotations

import os
from pathlib import Path

from embstore.files import read_file, replace_file, writing_to

__all__ = ["begun_at", "forget_notes", "note_begun", "note_listed"]


def note_begun(pool: str, directory: str) -> None:
    """Checkpoints of the pool are begun there from now on; durable on return."""
    if not _listed(pool).exists():
        _write(_begun(pool), directory)


def note_listed(pool: str, directory: str) -> None:
    """One of those there counts, and stays whatever becomes of the directory; durable on return."""
    _write(_listed(pool), directory)
    with writing_to(_begun(pool)):
        _begun(pool).unlink(missing_ok=True)


def forget_notes(pool: str) -> None:
    """The pool has no checkpoint any more."""
    for note in (_listed(pool), _begun(pool)):
        with writing_to(note):
            note.unlink(missing_ok=True)


def begun_at(pool: str) -> str | None:
    """None where one of its checkpoints has counted, or where nothing was noted."""
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
