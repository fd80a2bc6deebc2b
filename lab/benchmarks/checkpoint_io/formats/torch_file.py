"""PyTorch's own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.errors import DamagedCheckpointError
from benchmarks.checkpoint_io.page_cache import FilePart
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.publishing import demand_readable, replacing

__all__ = ["MappedTorchFile", "TorchFile"]


class TorchFile:
    """`torch.save` and `torch.load`."""

    notices_flipped_bits = False
    saves_what_it_is_given = True
    tells_sync_apart = True
    reads_of_a_byte = 1
    mmap: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        self._path = folder / "checkpoint.pt"

    def content_of(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint

    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        document = {"tensors": dict(content.tensors), "scalars": json.dumps(content.scalars)}
        with replacing(self._path, clock) as file, clock("serialise"):
            torch.save(document, file)  # type: ignore[arg-type]  # needs no more than write

    def load(self, clock: PhaseClock) -> Checkpoint:
        demand_readable(self._path)
        try:
            with clock("read"):
                document = torch.load(self._path, weights_only=True, mmap=self.mmap)
                return Checkpoint(document["tensors"], json.loads(document["scalars"]))
        except Exception as error:  # whatever its parts make of the wrong bytes
            raise DamagedCheckpointError(self._path, f"torch.load: {error!r}") from error

    def parts(self) -> list[FilePart]:
        return [FilePart.whole(self._path)]

    def notes(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        """Nothing is kept."""


class MappedTorchFile(TorchFile):
    """As above, read by `torch.load(mmap=True)`: bytes come from the file when they are touched."""

    mmap = True
