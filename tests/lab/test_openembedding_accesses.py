"""Accesses that the engine counts on a scaled-down table, compared with simple models."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from functools import cache

import numpy as np
import pytest

from pmemlab.errors import LabError
from pmemlab.model.openembedding import accesses as accesses_module
from pmemlab.model.openembedding.accesses import (
    SCALE,
    CacheAccesses,
    TouchedRows,
    count_cache_accesses,
    count_touched_rows,
)
from pmemlab.model.openembedding.setup import load_setup
from pmemlab.workloads.synthetic import ACCESS_SKEW

ROWS = 200_000 * SCALE
CACHE = 1000 * SCALE
STEP = 50 * SCALE


@cache
def counted_with(cached: int, skew: float = 1.0) -> CacheAccesses:
    """Returns counts for a cache of `cached` rows of the scaled-down table. Several tests share
    them."""
    return count_cache_accesses(ROWS, cached * SCALE, STEP, skew)


def plain_lru_misses(rows: int, cached: int, step: int, skew: float) -> float:
    """Returns the share of pulls that miss an LRU list, updated with each step's keys in order."""
    draw = accesses_module._KeyGenerator(rows, skew)
    cache: OrderedDict[int, None] = OrderedDict()
    counted = misses = 0
    for i in range(6000):
        keys = [int(key) for key in draw(step)]
        if i >= 2000:
            counted += len(keys)
            misses += sum(key not in cache for key in keys)
        for key in keys:
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > cached:
            cache.popitem(last=False)
    return misses / counted


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
def test_the_engine_misses_as_often_as_a_plain_lru(skew: float) -> None:
    counted = counted_with(CACHE // SCALE, skew)
    expected = plain_lru_misses(ROWS // SCALE, CACHE // SCALE, STEP // SCALE, skew)
    assert counted.misses == pytest.approx(expected, rel=0.03)
    # A row that misses twice in a step is promoted once; each promotion demotes another row.
    assert 0.9 * counted.misses < counted.promotions <= counted.misses
    assert counted.demotions == pytest.approx(counted.promotions, rel=0.01)


@pytest.mark.parametrize("cached", [5, 20])
def test_a_cache_smaller_than_a_step_misses_as_often_as_a_plain_lru(cached: int) -> None:
    counted = counted_with(cached)
    expected = plain_lru_misses(ROWS // SCALE, cached, STEP // SCALE, 1.0)
    assert counted.misses == pytest.approx(expected, rel=0.05)


def test_only_a_cache_smaller_than_a_step_evicts_rows_before_their_update() -> None:
    draw = accesses_module._KeyGenerator(ROWS // SCALE, 1.0)
    step = STEP // SCALE
    distinct = np.mean([len(np.unique(draw(step))) for _ in range(4000)]) / step
    one_row = counted_with(1)
    assert one_row.late_updates == pytest.approx(distinct - 1 / step, rel=0.02)
    assert counted_with(step).late_updates == 0


def test_a_smaller_cache_never_misses_or_moves_less() -> None:
    counts = [counted_with(cached) for cached in (1, 5, 20, STEP // SCALE, CACHE // SCALE)]
    for field in dataclasses.fields(CacheAccesses):
        shares = [getattr(counted, field.name) for counted in counts]
        assert shares == sorted(shares, reverse=True), field.name


def test_among_the_most_popular_rows_the_shares_continue_the_paper_s_table() -> None:
    rows = 2_000_000
    ranks = accesses_module._KeyGenerator(rows, 1.0)(400_000)
    (keys, share), (more_keys, more_share) = ACCESS_SKEW[:2]
    of_these = float(np.mean(ranks < keys * rows))
    fewer = keys * keys / more_keys
    assert of_these == pytest.approx(share, abs=0.003)
    assert np.mean(ranks < fewer * rows) == pytest.approx(share**2 / more_share, abs=0.003)


def test_counts_are_reproducible() -> None:
    assert count_cache_accesses(ROWS, CACHE, STEP) == counted_with(CACHE // SCALE)


def test_the_paper_s_cache_has_the_paper_s_miss_rate() -> None:
    setup = load_setup()
    counted = count_cache_accesses(
        setup.workload.rows,
        setup.cached_rows(setup.servers.cache_gb),
        setup.workload.gpu_accesses * setup.workload.miss_rate_gpus,
    )
    assert counted.misses == pytest.approx(setup.workload.miss_rate, rel=0.02)


def test_touched_rows_are_the_distinct_keys_of_the_draws() -> None:
    rows = 50_000_000
    counted = count_touched_rows(rows, 3 * rows)
    table_rows = rows // accesses_module._TOUCHED_SCALE
    draw = accesses_module._KeyGenerator(table_rows, 1.0)
    total = round(counted.accesses[-1] * table_rows)
    keys = np.concatenate([draw(1) for _ in range(total)])
    assert counted.rows[-1] == len(np.unique(keys)) / table_rows
    assert counted.accesses[-1] >= 3
    assert list(counted.rows) == sorted(counted.rows)


def test_touched_rows_are_interpolated_linearly_in_logarithms() -> None:
    touched = TouchedRows(accesses=(0.01, 1.0), rows=(0.01, 0.1))
    assert touched.share_touched_by(0.1) == pytest.approx(10**-1.5)
    assert touched.share_touched_by(0.001) == pytest.approx(0.001)
    with pytest.raises(ValueError, match="counted"):
        touched.share_touched_by(2.0)


@pytest.mark.parametrize("cached", [0.4 * SCALE, ROWS])
def test_a_cache_size_that_cannot_be_counted_is_refused_by_its_argument(cached: float) -> None:
    with pytest.raises(LabError, match="--cache-gb: a cache of"):
        count_cache_accesses(ROWS, cached, STEP)


def test_a_skew_out_of_range_is_refused_by_its_argument() -> None:
    with pytest.raises(LabError, match="--skew: must be between"):
        count_cache_accesses(ROWS, CACHE, STEP, skew=100.0)
