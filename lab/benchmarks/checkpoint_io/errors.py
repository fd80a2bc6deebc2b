"""Errors of saving and loading checkpoints."""

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

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class NoCheckpointError(DataError):
    """There is no checkpoint at this path, and there never was a complete one."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no checkpoint has been saved there")
        self.path = path


class CheckpointInUseError(FailedRunError):
    """Another save is writing this checkpoint, or loaded tensors lie in the slot to be
    overwritten.
    """


class MediumError(DataError):
    """A medium's path can't be used, or isn't of the kind that the user gave."""


class DifferentBytesError(FailedRunError):
    """The loaded content differs from what was saved."""
