"""A table in a durable pool that the tests of checkpoints train, and what it must come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.options import TIER_KINDS

DIM = 4
KEYS = 300
CACHE_ROWS = 24
ROW_BYTES = 2 * 16
POOL_BYTES = 8 << 20


def durable(
    place: Path,
    name: str = "table",
    storage_type: es.StorageType = es.StorageType.DRAM_PMEM,
    **options: Any,
) -> es.EmbeddingVariable:
    cache_rows = options.pop("cache_rows", CACHE_ROWS)
    above_ssd = len(TIER_KINDS[storage_type]) == 3
    pool_bytes = pool_bytes_above_ssd(cache_rows) if above_ssd else POOL_BYTES
    return make(
        name,
        es.StorageOption(
            storage_type=storage_type,
            storage_path=str(place),
            storage_size=[cache_rows * ROW_BYTES, options.pop("pool_bytes", pool_bytes)],
            durability="checkpoint",
        ),
        **options,
    )


def pool_bytes_above_ssd(cache_rows: int) -> int:
    """Of a pool with room for some 80 rows, so that most go on to the tier below it."""
    first_tier_rows = cache_rows + max(cache_rows // 8, 256)
    for_moves = 4096
    files_own = 16  # its header
    return (first_tier_rows + for_moves + files_own + 104) * 256


def make(
    name: str, storage: es.StorageOption | None = None, **options: Any
) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        name,
        options.pop("dim", DIM),
        initializer=es.initializers.RandomNormal(seed=3),
        optimizer=options.pop("optimizer", es.optimizers.Adagrad(0.1)),
        ev_option=es.EmbeddingVariableOption(
            storage_option=storage or es.StorageOption(),
            filter_option=options.pop("filter_option", None),
        ),
        **options,
    )


def batch(step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    random = np.random.default_rng(step)
    ids = random.integers(0, KEYS, 20)
    return ids, random.standard_normal((20, DIM)).astype(np.float32)


def train(variable: es.EmbeddingVariable, steps: range) -> None:
    for step in steps:
        ids, grads = batch(step)
        variable.lookup(ids, train=True)
        variable.apply_gradients(ids, grads)


def contents(variable: es.EmbeddingVariable) -> dict[str, Any]:
    return {name: column.tobytes() for name, column in variable.export().items()}


def plain(steps: int, **options: Any) -> dict[str, Any]:
    """What a variable in DRAM comes to."""
    with make("plain", **options) as variable:
        train(variable, range(steps))
        return contents(variable)


def rows_a_tier(variable: es.EmbeddingVariable) -> list[int]:
    variable.drain()
    return [tier["rows"] for tier in variable.stats()["tiers"]]
