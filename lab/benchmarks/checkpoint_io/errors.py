"""What goes wrong with checkpoints that are saved and loaded here."""

from __future__ import annotations

from pathlib import Path

from pmemlab.workloads.batches import DataError
from pmemlab.workloads.run import FailedRunError

__all__ = [
    "CheckpointInUseError",
    "DamagedCheckpointError",
    "DifferentBytesError",
    "MediumError",
    "NoCheckpointError",
]


class DamagedCheckpointError(FailedRunError):
    """A checkpoint that can't be trusted: torn, truncated, or not as it was written."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class NoCheckpointError(DataError):
    """There is no checkpoint at this place, and never was a complete one."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no checkpoint has been saved there")
        self.path = path


class CheckpointInUseError(FailedRunError):
    """Another save writes this checkpoint, or loaded tensors lie in what would be overwritten."""


class MediumError(DataError):
    """A medium's path can't be used, or isn't what it is said to be."""


class DifferentBytesError(FailedRunError):
    """What was loaded isn't what was saved."""
