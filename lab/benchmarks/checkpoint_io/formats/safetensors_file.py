"""Hugging Face's safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.errors import DamagedCheckpointError
from benchmarks.checkpoint_io.formats.format import Format
from benchmarks.checkpoint_io.phases import PhaseClock
from benchmarks.checkpoint_io.publishing import check_readable, replacing
from pmemlab.errors import MissingRequirementError

__all__ = ["SafetensorsFile"]


class SafetensorsFile(Format):
    """Serialises in memory and then writes, so that the two can be timed separately."""

    file_name = "checkpoint.safetensors"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._library, self._torch_part = _library()

    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        with clock("serialise"):
            raw = self._torch_part.save(
                {name: tensor.contiguous() for name, tensor in content.tensors.items()},
                metadata={
                    "scalars": json.dumps(content.scalars),
                    # The file sorts its tensors by size; training needs the original order.
                    "order": json.dumps(list(content.tensors)),
                },
            )
        with replacing(self._path, clock) as file:
            file.write(raw)

    def load(self, clock: PhaseClock) -> Checkpoint:
        check_readable(self._path)
        try:
            with clock("read"), self._library.safe_open(self._path, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in json.loads(metadata["order"])}
                return Checkpoint(tensors, json.loads(metadata["scalars"]))
        except Exception as error:  # the library's error types for damaged bytes vary
            raise DamagedCheckpointError(self._path, f"safetensors: {error!r}") from error


def _library() -> tuple[Any, Any]:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingRequirementError(
            "the Python package safetensors is missing", "pip install 'pmemlab[benchmarks]'"
        ) from error
    return safetensors, safetensors.torch
