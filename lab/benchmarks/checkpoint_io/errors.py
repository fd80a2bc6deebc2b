"""What goes wrong with checkpoints that are saved and loaded here.

None of these is the lab's breakage: a library that this computer lacks is a
`pmemlab.errors.MissingRequirementError`, as everywhere.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "CheckpointIOError",
    "CheckpointInUseError",
    "DamagedCheckpointError",
    "DifferentBytesError",
    "MediumError",
    "NoCheckpointError",
]


class CheckpointIOError(Exception):
    """Base of the errors of this package."""


class DamagedCheckpointError(CheckpointIOError):
    """A checkpoint that can't be trusted: torn, truncated, or not as it was written."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class NoCheckpointError(CheckpointIOError):
    """There is no checkpoint at this place, and never was a complete one."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no checkpoint has been saved there")
        self.path = path


class CheckpointInUseError(CheckpointIOError):
    """Another save writes this checkpoint, or loaded tensors lie in what would be overwritten."""


class MediumError(CheckpointIOError, ValueError):
    """A medium's path can't be used, or isn't what it is said to be."""


class DifferentBytesError(CheckpointIOError):
    """What was loaded isn't what was saved."""
