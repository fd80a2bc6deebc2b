"""Beside a pool lies the name of the directory that lists its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from embstore.checkpoint.directories import sync, writing_to
from embstore.checkpoint.reading import read_file

__all__ = ["read_note", "write_note"]


def write_note(pool: str, directory: str) -> None:
    """The pool's checkpoints are listed there from now on; durable on return."""
    note = _note_of(pool)
    text = os.fsencode(directory)
    unfinished = note.with_name(note.name + ".new")
    with writing_to(note):
        if note.exists() and read_file(note) == text:
            return
        with unfinished.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(note)
        sync(note.parent)


def read_note(pool: str) -> str | None:
    """None where nothing was noted."""
    note = _note_of(pool)
    return os.fsdecode(read_file(note)) if note.exists() else None


def _note_of(pool: str) -> Path:
    return Path(f"{pool}.listed-at")
