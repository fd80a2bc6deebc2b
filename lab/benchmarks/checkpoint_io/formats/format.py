"""What every format does, so that arms differ in nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.page_cache import FilePart
from benchmarks.checkpoint_io.phases import PhaseClock

__all__ = ["Format"]


class Format(ABC):
    """One checkpoint in a folder of its own, which exists. A newer one replaces it.

    Whatever a save dies of, the checkpoint before stays. No save returns before the medium has
    everything, the folder's entry too.
    """

    file_name: ClassVar[str]
    """Of the checkpoint in the folder."""

    notices_flipped_bits: ClassVar[bool] = False
    """Whether `load` raises where any bit of what was saved has changed."""

    saves_what_it_is_given: ClassVar[bool] = True
    """Whether `save` may be given a copy, made while training waits, instead of the content."""

    tells_sync_apart: ClassVar[bool] = True
    """Whether the phases of a save tell what is the medium's, `copy`, `write` and `sync`, from the
    save's own work."""

    reads_of_a_byte: ClassVar[int] = 1
    """How often a load, to the touch of all that it gave, reads a byte from its file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.file_name

    def content_of(self, checkpoint: Checkpoint) -> Checkpoint:
        """What `save` is given and `load` must give back: the checkpoint, or as many bytes of it in
        another form. Preparations that aren't part of a save happen here."""
        return checkpoint

    @abstractmethod
    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        """Raises CheckpointInUseError, OSError."""

    @abstractmethod
    def load(self, clock: PhaseClock) -> Checkpoint:
        """Phases end when the tensors can be used. Raises NoCheckpointError, and
        DamagedCheckpointError, which names the file and what is wrong."""

    def parts(self) -> list[FilePart]:
        """Where the checkpoint lies."""
        return [FilePart.whole(self._path)]

    def notes(self) -> dict[str, object]:
        """What the last save found out about its medium."""
        return {}

    def close(self) -> None:  # noqa: B027  (most keep nothing)
        """Gives up what was kept for the next save."""
