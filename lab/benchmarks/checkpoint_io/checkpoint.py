"""The content that is saved and loaded: named tensors, and a few numbers and strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.checkpoint_io.errors import DifferentBytesError

__all__ = ["Checkpoint", "check_same_bits", "touch"]


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint. tensors: on the CPU, of any shape and dtype. scalars: JSON
    values.
    """

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def check_same_bits(found: Checkpoint, expected: Checkpoint) -> None:
    """Raise DifferentBytesError, which names the first tensor that has other bits."""
    if list(found.tensors) != list(expected.tensors):
        different = set(found.tensors) ^ set(expected.tensors)
        raise DifferentBytesError(f"other tensors, or in another order: {sorted(different)[:5]}")
    for name, tensor in expected.tensors.items():
        other = found.tensors[name]
        if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            raise DifferentBytesError(
                f"{name} is {other.dtype} {tuple(other.shape)}, "
                f"not {tensor.dtype} {tuple(tensor.shape)}"
            )
        if not torch.equal(_bytes_of(other), _bytes_of(tensor)):  # NaNs and signs of zero count
            raise DifferentBytesError(f"{name} has other bits than were saved")
    if found.scalars != expected.scalars:
        raise DifferentBytesError("the numbers beside the tensors are others than were saved")


def touch(checkpoint: Checkpoint) -> int:
    """Read every byte of every tensor, at the speed of memory. Returns the bytes' exclusive or."""
    total = 0
    for tensor in checkpoint.tensors.values():
        raw = _bytes_of(tensor).numpy()
        words = len(raw) - len(raw) % 8
        total ^= int(np.bitwise_xor.reduce(raw[:words].view(np.uint64)))
        total ^= int.from_bytes(raw[words:].tobytes(), "little")
    return total


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
