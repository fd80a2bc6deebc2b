"""Derives the cache's bytes per row, which the paper doesn't give, from its miss rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from pmemlab.model.openembedding.accesses import count_cache_accesses
from pmemlab.model.openembedding.setup import Setup

__all__ = ["TRIES", "find_cached_row_bytes"]

TRIES: Final = 8
_MAX_ROWS = 16  # upper bound, in rows of weights: optimizer slots and index entries add to a row


def find_cached_row_bytes(setup: Setup, on_try: Callable[[], object] = lambda: None) -> float:
    """Returns the bytes per row at which the engine's LRU misses as often as the paper's cache, at
    its cache size and skew. Calls `on_try` after each of TRIES counts.
    """
    workload, cache_bytes = setup.workload, setup.servers.cache_gb * 1e9
    low, high = float(workload.row_bytes), float(_MAX_ROWS * workload.row_bytes)
    for _ in range(TRIES):
        middle = math.sqrt(low * high)
        accesses = count_cache_accesses(
            workload.rows, cache_bytes / middle, workload.gpu_accesses * workload.miss_rate_gpus
        )
        # Larger rows mean fewer cached rows and more misses.
        low, high = (middle, high) if accesses.misses < workload.miss_rate else (low, middle)
        on_try()
    return math.sqrt(low * high)
