"""A restore puts rows where they will stay: it knows all ranks before it puts in the first row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_storage import variable_with_options

import embstore as es

ROWS, FIRST_TIER_ROWS, DIM = 200_000, 25_000, 2


@pytest.mark.parametrize("strategy", [es.CacheStrategy.LFU, es.CacheStrategy.LRU])
def test_a_restore_moves_few_rows_and_the_first_tier_is_full_of_the_hottest(
    tmp_path: Path, strategy: es.CacheStrategy
) -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, tmp_path / "rows"],
        [FIRST_TIER_ROWS * (DIM * 4 + 24), 1 << 26],
        cache_strategy=strategy,
    )
    random = np.random.default_rng(1)
    with variable_with_options("table", DIM, storage, optimizer=es.optimizers.SGD(0.1)) as table:
        ids = random.permutation(ROWS)
        table.apply_gradients(ids, np.zeros((ROWS, DIM), np.float32))
        hot = ids[:100_000]
        for share in (100_000, 50_000, FIRST_TIER_ROWS):
            table.apply_gradients(hot[:share], np.zeros((share, DIM), np.float32))
        es.save(tmp_path / "save", [table], 0)
        before = table.stats()
        es.restore(tmp_path / "save", [table])
        after = table.stats()
        first, below = (tier["rows"] for tier in after["tiers"])
        assert first + below == ROWS
        assert first == after["tiers"][0]["capacity_rows"]
        assert after["demotions"] - before["demotions"] < 0.2 * first
        hottest = hot[: min(first, FIRST_TIER_ROWS)]
        assert np.mean(table.lookup_tier(hottest) == 0) == 1
