"""The interface of a format, so that arms differ in nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.page_cache import FilePart
from benchmarks.checkpoint_io.phases import PhaseClock

__all__ = ["Format"]


class Format(ABC):
    """A checkpoint in an existing folder of its own. A newer checkpoint replaces it.

    If a save fails in any way, the previous checkpoint stays. A save returns only when the medium
    has everything, including the folder's entry.
    """

    file_name: ClassVar[str]
    """The checkpoint's name in the folder."""

    notices_flipped_bits: ClassVar[bool] = False
    """Whether `load` raises if any saved bit has changed."""

    saves_content_as_given: ClassVar[bool] = True
    """Whether `save` may be given a copy, made while training waits, instead of the content."""

    separates_sync: ClassVar[bool] = True
    """Whether the phases of a save separate the medium's time (`copy`, `write` and `sync`) from the
    save's own work.
    """

    reads_per_byte: ClassVar[int] = 1
    """How often a load, including the touch of all tensors, reads each byte of its file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.file_name

    def content_of(self, checkpoint: Checkpoint) -> Checkpoint:
        """Returns the content to `save`, which `load` must return: the checkpoint, or as many bytes
        in another form. Preparations that aren't part of a save happen here.
        """
        return checkpoint

    @abstractmethod
    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        """Saves `content`. Raises CheckpointInUseError, OSError."""

    @abstractmethod
    def load(self, clock: PhaseClock) -> Checkpoint:
        """Loads the checkpoint; phases end when the tensors can be used. Raises NoCheckpointError,
        and DamagedCheckpointError, which names the file and the problem.
        """

    def parts(self) -> list[FilePart]:
        """Returns the parts of files that the checkpoint lies in."""
        return [FilePart.whole(self._path)]

    def notes(self) -> dict[str, object]:
        """Returns what the last save found out about its medium."""
        return {}

    def close(self) -> None:  # noqa: B027  (most keep nothing)
        """Releases what was kept for the next save."""
