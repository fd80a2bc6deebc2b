"""Checkpoints for tests, and the formats that save them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.formats import FORMATS, Format
from pmemlab.errors import MissingRequirementError

every_format = pytest.mark.parametrize("name", FORMATS)


def make_format(name: str, folder: Path) -> Format:
    """Returns the format, saving to the folder. Skips the test if one of its libraries is missing,
    and says how to get it."""
    if name == "mapped":
        need_libpmem()
    try:
        return FORMATS[name](folder)
    except MissingRequirementError as error:
        pytest.skip(str(error))


def need_libpmem() -> None:
    """Skips the test if libpmem is missing."""
    from benchmarks.checkpoint_io import libpmem

    try:
        libpmem._library()
    except MissingRequirementError as error:
        pytest.skip(str(error))


def varied_checkpoint() -> Checkpoint:
    """Returns a checkpoint with every dtype, NaN, both zeros, an empty tensor, a 0-d tensor and a
    transposed one."""
    generator = torch.Generator().manual_seed(7)
    floats = torch.randn(50, 33, generator=generator)
    floats[0, :3] = torch.tensor([float("nan"), -0.0, float("inf")])
    tensors = {
        "floats": floats,
        "transposed": torch.randn(9, 5, generator=generator).T,
        "nothing": torch.zeros(0, 4),
        "count": torch.tensor(17),
        "flags": torch.tensor([True, False, True]),
        "generator": torch.arange(255, dtype=torch.uint8),
        **{
            str(dtype): torch.arange(5).to(dtype)
            for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int8)
        },
    }
    scalars = {"step": 4, "rate": 0.1, "name": "größer", "nested": [{"a": None}]}
    return Checkpoint(tensors, scalars)


def uniform_checkpoint(step: int, tensors: int = 8, floats: int = 4096) -> Checkpoint:
    """Returns a checkpoint in which every float is `step`, so that a mixture of two saves shows."""
    filled = {f"tensor {n}": torch.full((floats,), float(step)) for n in range(tensors)}
    return Checkpoint(filled, {"step": step})


def step_of(checkpoint: Checkpoint) -> int:
    """Returns a uniform checkpoint's step. Fails if its tensors are of different steps."""
    step: int = checkpoint.scalars["step"]
    for name, tensor in checkpoint.tensors.items():
        if name != "keys":
            assert (tensor == step).all(), f"{name} isn't of step {step}"
    return step


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
