"""PyTorch's own format."""

from __future__ import annotations

import json
from typing import ClassVar

import torch

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.errors import DamagedCheckpointError
from benchmarks.checkpoint_io.formats.format import Format
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.publishing import check_readable, replacing

__all__ = ["MappedTorchFile", "TorchFile"]


class TorchFile(Format):
    """`torch.save` and `torch.load`."""

    file_name = "checkpoint.pt"
    mmap: ClassVar[bool] = False

    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        document = {"tensors": dict(content.tensors), "scalars": json.dumps(content.scalars)}
        with replacing(self._path, clock) as file, clock("serialise"):
            torch.save(document, file)  # type: ignore[arg-type]  # needs no more than write

    def load(self, clock: PhaseClock) -> Checkpoint:
        check_readable(self._path)
        try:
            with clock("read"):
                document = torch.load(self._path, weights_only=True, mmap=self.mmap)
                return Checkpoint(document["tensors"], json.loads(document["scalars"]))
        except Exception as error:  # PyTorch's error types for damaged bytes vary
            raise DamagedCheckpointError(self._path, f"torch.load: {error!r}") from error


class MappedTorchFile(TorchFile):
    """Like TorchFile, with `torch.load(mmap=True)`: bytes are read from the file when touched."""

    mmap = True
