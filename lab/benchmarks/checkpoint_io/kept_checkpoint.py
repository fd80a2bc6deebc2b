"""The checkpoint that a run keeps for `--resume`, one per model and medium."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.formats import FORMATS
from benchmarks.checkpoint_io.medium import Medium
from benchmarks.checkpoint_io.phases import PhaseClock

__all__ = ["load_kept", "save_kept"]


def save_kept(medium: Medium, format_name: str, model: str, checkpoint: Checkpoint) -> Path:
    """Save `checkpoint` where `load_kept` finds it. Returns its folder."""
    folder = _folder(medium, model)
    folder.mkdir(parents=True, exist_ok=True)
    with closing(FORMATS[format_name](folder)) as chosen:
        chosen.save(chosen.content_of(checkpoint), PhaseClock())
    return folder


def load_kept(medium: Medium, format_name: str, model: str) -> Checkpoint:
    """Loads what `save_kept` saved. Raises NoCheckpointError and DamagedCheckpointError, which name
    the file.
    """
    with closing(FORMATS[format_name](_folder(medium, model))) as chosen:
        return chosen.load(PhaseClock())


def _folder(medium: Medium, model: str) -> Path:
    return medium.path / "pmemlab-kept" / model
