"""The index of a mapped checkpoint: its tensors, their offsets and their checksums."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.checkpoint_io.errors import DamagedCheckpointError
from benchmarks.checkpoint_io.mapped_file.layout import DTYPES, TENSOR_ALIGNMENT, round_up

__all__ = ["Index", "TensorEntry", "raw_bytes"]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in the index. offset: from the start of the tensors' area."""

    name: str
    dtype: str
    shape: list[int]
    offset: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Index:
    tensors: list[TensorEntry]
    scalars: Mapping[str, Any]

    @classmethod
    def lay_out(cls, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> Index:
        """Lay out contiguous tensors. Raises ValueError, which names a tensor of an unsupported
        dtype.
        """
        entries: list[TensorEntry] = []
        offset = 0
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise ValueError(f"{name}: tensors of {tensor.dtype} can't be saved in this format")
            crc32 = zlib.crc32(raw_bytes(tensor))
            entries.append(
                TensorEntry(name, dtype, list(tensor.shape), offset, tensor.nbytes, crc32)
            )
            offset = round_up(offset + tensor.nbytes, TENSOR_ALIGNMENT)
        return cls(entries, scalars)

    @property
    def data_bytes(self) -> int:
        if not self.tensors:
            return 0
        last = self.tensors[-1]
        return round_up(last.offset + last.bytes, TENSOR_ALIGNMENT)

    def encode(self) -> bytes:
        """Returns the index as JSON. Raises TypeError or ValueError for scalars that JSON can't
        express.
        """
        tensors = [asdict(entry) for entry in self.tensors]
        document = {"scalars": self.scalars, "tensors": tensors}
        return json.dumps(document, allow_nan=False).encode()

    @classmethod
    def decode(cls, path: Path, raw: bytes, data_bytes: int) -> Index:
        """Parses and checks an index. Raises DamagedCheckpointError."""
        try:
            document = json.loads(raw)
            entries = [TensorEntry(**entry) for entry in document["tensors"]]
            index = cls(entries, document["scalars"])
            sound = all(_is_sound(entry, data_bytes) for entry in entries)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpointError(path, f"the index can't be read: {error!r}") from error
        if not sound:
            raise DamagedCheckpointError(path, "the index speaks of bytes that aren't there")
        return index


def raw_bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _is_sound(entry: TensorEntry, data_bytes: int) -> bool:
    size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
    return (
        size == entry.bytes
        and entry.offset % TENSOR_ALIGNMENT == 0
        and 0 <= entry.offset <= entry.offset + size <= data_bytes
    )
