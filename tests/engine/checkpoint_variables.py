"""Variables for the checkpoint tests, made without a fixture so that hypothesis can make many."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from engine_storage import IN_MEMORY, Stack, row_bytes, variable_with_options

import embstore as es

DRAM = Stack(es.StorageType.DRAM)


@contextlib.contextmanager
def open_variable(
    stack: Stack = DRAM,
    *,
    dim: int = 3,
    name: str = "var",
    optimizer: es.optimizers.Optimizer | None = None,
    first_tier_rows: int = 8,
    rows: int = 4096,
    partition_num: int = 1,
    initializer: es.initializers.Initializer | None = None,
    **options: Any,
) -> Iterator[es.EmbeddingVariable]:
    """Opens a variable with upper tiers of first_tier_rows each, a last tier of `rows`, random
    initial rows and Adagrad."""
    optimizer = optimizer or es.optimizers.Adagrad(0.1)
    row = row_bytes(dim, optimizer)
    sizes = [*[first_tier_rows * row] * (stack.tiers - 1), rows * row]
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory,
        variable_with_options(
            name,
            dim,
            stack.option(Path(directory), sizes),
            initializer=initializer or es.initializers.RandomUniform(-1.0, 1.0, seed=7),
            optimizer=optimizer,
            partition_num=partition_num,
            **options,
        ) as opened,
    ):
        yield opened


def train(var: es.EmbeddingVariable, seed: int, batches: int = 5, keys: int = 60) -> None:
    """Applies skewed batches, the same for the same seed."""
    random = np.random.default_rng(seed)
    for _ in range(batches):
        ids = np.minimum(random.zipf(1.4, 24), keys).astype(np.int64) * 7919 - 40_000
        grads = random.standard_normal((24, var.dim)).astype(np.float32)
        var.apply_gradients(ids, grads)


def files_of(path: Path) -> list[Path]:
    """Returns the files of the saves in a directory."""
    return sorted(file for save in path.glob("[si]*-*") for file in save.iterdir())


def fail_to_save(
    save: Callable[..., es.SaveReport], path: Path, var: es.EmbeddingVariable, step: int
) -> None:
    """Runs a save that evicts rows and writes its files, but fails before they reach the medium."""
    path.mkdir(exist_ok=True)
    with (
        patch("embstore.checkpoint.directories.sync", side_effect=OSError(5, "the medium fails")),
        pytest.raises(es.errors.StorageError, match="the medium fails"),
    ):
        save(path, [var], step)
