"""The bytes of the cache that a row takes, which the paper doesn't give, from its miss rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from pmemlab.model.openembedding.accesses import count_cache_accesses
from pmemlab.model.openembedding.setup import Setup

__all__ = ["TRIES", "find_cached_row_bytes"]

TRIES: Final = 8
_MOST_ROWS = 16  # that could be more than one row's bytes: weights, optimizer slots, entries


def find_cached_row_bytes(setup: Setup, on_try: Callable[[], object] = lambda: None) -> float:
    """With which the engine's LRU misses as often as the paper's, at its cache size and skew."""
    workload, cache_bytes = setup.workload, setup.servers.cache_gb * 1e9
    low, high = float(workload.row_bytes), float(_MOST_ROWS * workload.row_bytes)
    for _ in range(TRIES):
        middle = math.sqrt(low * high)
        accesses = count_cache_accesses(
            workload.rows, cache_bytes / middle, workload.gpu_accesses * workload.miss_rate_gpus
        )
        # A larger row leaves room for fewer.
        low, high = (middle, high) if accesses.misses < workload.miss_rate else (low, middle)
        on_try()
    return math.sqrt(low * high)
