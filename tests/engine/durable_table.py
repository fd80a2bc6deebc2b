"""A table in a durable pool that checkpoint tests train, and the rows that it must end with."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from engine_storage import GPU, variable_with_options
from numpy.typing import NDArray

import embstore as es
from embstore.options import TIER_KINDS, TierKind

DIM = 4
KEYS = 300
CACHE_ROWS = 24  # in each tier above the pool
ROW_BYTES = 2 * 16
POOL_BYTES = 8 << 20


def make_durable_table(
    place: Path,
    name: str = "table",
    storage_type: es.StorageType = es.StorageType.DRAM_PMEM,
    **options: Any,
) -> es.EmbeddingVariable:
    cache_rows = options.pop("cache_rows", CACHE_ROWS)
    kinds = TIER_KINDS[storage_type]
    pool = kinds.index(TierKind.PMEM)
    above_ssd = kinds[-1] is TierKind.SSDHASH
    pool_bytes = pool_bytes_above_ssd(cache_rows, above=pool) if above_ssd else POOL_BYTES
    return make_table(
        name,
        es.StorageOption(
            storage_type=storage_type,
            storage_path=str(place),
            storage_size=[cache_rows * ROW_BYTES] * pool + [options.pop("pool_bytes", pool_bytes)],
            durability="checkpoint",
            device=GPU if kinds[0] is TierKind.HBM else None,
        ),
        **{"restores": True, **options},
    )


def pool_bytes_above_ssd(cache_rows: int, above: int = 1) -> int:
    """Returns the size of a pool with room for some 80 rows, so that most rows go to the tier
    below.

    above: the number of tiers above the pool; if these are HBM and DRAM, rows on the move to HBM
    need slots, too.
    """
    rows_above = above * cache_rows + (1 if above == 1 else 3) * max(cache_rows // 8, 256)
    for_moves = 4096
    files_own = 16  # its header
    return (rows_above + for_moves + files_own + 104) * 256


def make_table(
    name: str, storage: es.StorageOption | None = None, **options: Any
) -> es.EmbeddingVariable:
    options.setdefault("optimizer", es.optimizers.Adagrad(0.1))
    initializer = es.initializers.RandomNormal(seed=3)
    return variable_with_options(
        name, options.pop("dim", DIM), storage, initializer=initializer, **options
    )


@functools.lru_cache(maxsize=512)
def batch(step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    random = np.random.default_rng(step)
    ids = random.integers(0, KEYS, 20)
    return ids, random.standard_normal((20, DIM)).astype(np.float32)


def train(variable: es.EmbeddingVariable, steps: range) -> None:
    for step in steps:
        ids, grads = batch_for(variable, step)
        variable.lookup(ids, train=True)
        variable.apply_gradients(ids, grads)


def batch_for(variable: es.EmbeddingVariable, step: int) -> tuple[Any, Any]:
    """Returns a batch on the host; if the variable has HBM, two of three batches on the GPU."""
    ids, grads = batch(step)
    if not variable.ev_option.storage_option.has_hbm or step % 3 == 0:
        return ids, grads
    return es.DeviceArray(ids, device=GPU), es.DeviceArray(grads, device=GPU)


def contents(variable: es.EmbeddingVariable) -> dict[str, Any]:
    return {name: column.tobytes() for name, column in variable.export().items()}


def rows_in_dram_after(steps: int, **options: Any) -> dict[str, Any]:
    """Returns the contents of a variable in DRAM after `steps` steps."""
    with make_table("plain", **options) as variable:
        train(variable, range(steps))
        return contents(variable)


def rows_per_tier(variable: es.EmbeddingVariable) -> list[int]:
    variable.drain()
    return [tier["rows"] for tier in variable.stats()["tiers"]]
