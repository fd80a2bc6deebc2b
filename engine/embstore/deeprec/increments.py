"""Finds the incremental checkpoints that follow a checkpoint.

The increments of the checkpoint with the rows DIR/PREFIX.rows-ID are checkpoints themselves:
DIR/.incremental_checkpoint/PREFIX.rows-ID/incr_model.ckpt-STEP, with all dense variables and the
rows that changed since the previous one. They are deleted with the checkpoint.
"""

from __future__ import annotations

import re
import weakref
from pathlib import Path
from typing import Any

__all__ = [
    "INCREMENT",
    "increments_folder",
    "increments_of",
    "restore_increments_in",
    "restores_increments",
]

INCREMENT = "incr_model.ckpt"

_FOLDER = ".incremental_checkpoint"
_WHOLE = re.compile(rf"{re.escape(INCREMENT)}-(\d+)\.index")

_restoring: weakref.WeakSet[Any] = weakref.WeakSet()


def increments_folder(rows: Path) -> Path:
    """Returns the folder of the increments that follow the checkpoint with these rows."""
    return rows.parent / _FOLDER / rows.name


def increments_of(rows: Path) -> list[str]:
    """Returns the prefixes of the increments after the checkpoint with these rows, in order."""
    folder = increments_folder(rows)
    if not folder.is_dir():
        return []
    found = [match for entry in folder.iterdir() if (match := _WHOLE.fullmatch(entry.name))]
    return [
        str(folder / match[0].removesuffix(".index"))
        for match in sorted(found, key=lambda match: int(match[1]))
    ]


def restore_increments_in(graph: Any) -> None:
    """Has every saver restore increments too when it restores in a session of the graph."""
    _restoring.add(graph)


def restores_increments(graph: Any) -> bool:
    return graph in _restoring
