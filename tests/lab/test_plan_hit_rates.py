"""Calculated hit rates, compared with plain sums, simulated caches, and the engine's counters."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from planned_devices import DISK, DRAM

import embstore as es
from pmemlab.model.planning.accesses import step_accesses
from pmemlab.model.planning.caches import CpuCache, direct_mapped_misses
from pmemlab.model.planning.hit_rates import (
    LeastFrequent,
    LeastRecent,
    characteristic_time,
)
from pmemlab.model.planning.popularity import BoundedZipf
from pmemlab.model.planning.row_bytes import RowShape
from pmemlab.model.planning.tiers import DeviceAssignment

SKEWS = st.floats(0, 2, allow_nan=False)
SMALL = st.integers(1, 60_000)


def _probabilities(rows: int, skew: float) -> NDArray[np.float64]:
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    return np.asarray(weights / weights.sum())


def _ids(rows: int, skew: float, count: int, seed: int = 7) -> NDArray[np.int64]:
    return np.random.default_rng(seed).choice(rows, count, p=_probabilities(rows, skew))


@given(SMALL, SKEWS, st.data())
@settings(max_examples=60, deadline=None)
def test_shares_equal_plain_sums(rows: int, skew: float, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, rows))
    last = data.draw(st.integers(first, rows))
    share = BoundedZipf(rows, skew).total(lambda p: p, first, last)
    assert share == pytest.approx(
        _probabilities(rows, skew)[first - 1 : last].sum(), rel=1e-6, abs=1e-9
    )


@given(SMALL, SKEWS, st.floats(0, 1e7))
@settings(max_examples=60, deadline=None)
def test_the_number_of_different_rows_equals_a_plain_sum(
    rows: int, skew: float, time: float
) -> None:
    different = BoundedZipf(rows, skew).expected_distinct_rows(time)
    assert different == pytest.approx(
        np.sum(-np.expm1(-_probabilities(rows, skew) * time)), rel=1e-6, abs=1e-9
    )


def test_the_sum_over_two_billion_rows_follows_the_zeta_function() -> None:
    """The sum of r ** -2 over all ranks r is pi ** 2 / 6; ranks above n contribute about 1 / n."""
    rows = 2_000_000_000
    harmonic = 1 / BoundedZipf(rows, 2.0).hottest_share
    assert harmonic == pytest.approx(np.pi**2 / 6 - 1 / rows, rel=1e-9)
    # With skew 1, it is ln n + Euler's constant. The next term, 1 / 2n, is within the tolerance.
    harmonic = 1 / BoundedZipf(rows, 1.0).hottest_share
    assert harmonic == pytest.approx(np.log(rows) + np.euler_gamma, rel=1e-9)


@given(
    st.sampled_from([LeastFrequent, LeastRecent]),
    st.integers(2, 10**10),
    st.floats(0, 2),
    st.lists(st.floats(0.001, 0.999), min_size=2, max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_a_larger_first_tier_hits_more_and_hits_add_up(
    kind: type[LeastFrequent] | type[LeastRecent], rows: int, skew: float, fractions: list[float]
) -> None:
    zipf = BoundedZipf(rows, skew)
    small, large = (max(1, int(fraction * rows)) for fraction in sorted(fractions))
    of_small, of_large = (kind(zipf, [size]).hit_rates() for size in (small, large))
    assert of_small[0] <= of_large[0] + 1e-9
    for rates in (of_small, of_large, kind(zipf, [small, large]).hit_rates()):
        assert sum(rates) == pytest.approx(1, abs=1e-6)
        assert all(-1e-9 <= rate <= 1 + 1e-9 for rate in rates)


@given(st.integers(100, 20_000), st.floats(0.3, 1.5), st.floats(0.01, 0.9))
@settings(max_examples=30, deadline=None)
def test_no_cache_beats_the_most_frequent_rows(rows: int, skew: float, fraction: float) -> None:
    zipf, first = BoundedZipf(rows, skew), max(1, int(rows * fraction))
    least_frequent = LeastFrequent(zipf, [first]).hit_rates()[0]
    assert LeastRecent(zipf, [first]).hit_rates()[0] <= least_frequent + 1e-6
    assert least_frequent == pytest.approx(_probabilities(rows, skew)[:first].sum(), rel=1e-6)


def test_lower_tiers_have_the_rows_that_upper_tiers_leave() -> None:
    placement = LeastFrequent(BoundedZipf(1000, 1.0), [100, 300])
    assert placement.tier_rows == (100, 300, 600)
    p = _probabilities(1000, 1.0)
    expected = (p[:100].sum(), p[100:400].sum(), p[400:].sum())
    assert placement.hit_rates() == pytest.approx(expected)
    assert LeastFrequent(BoundedZipf(1000, 1.0), [1000]).tier_rows == (1000, 0)


class _Lru:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kept: OrderedDict[int, None] = OrderedDict()

    def hits(self, row: int) -> bool:
        hit = row in self._kept
        self._kept[row] = None
        self._kept.move_to_end(row)
        if len(self._kept) > self._rows:
            self._kept.popitem(last=False)
        return hit


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [LeastFrequent, LeastRecent])
def test_rows_with_probability_zero_cause_no_accesses(
    kind: type[LeastFrequent] | type[LeastRecent],
) -> None:
    """With a very steep skew, nearly all probabilities are 0 in floating point."""
    zipf = BoundedZipf(10_000, 400.0)
    assert kind(zipf, [100, 300]).hit_rates() == pytest.approx((1.0, 0.0, 0.0))
    cache = CpuCache(zipf, 100 * 512, 512)
    assert zipf.total(lambda p: p * cache.miss_rate(p)) == pytest.approx(0.0)
    none = CpuCache(zipf, 0, 512)
    assert zipf.total(lambda p: p * none.miss_rate(p)) == pytest.approx(1.0)


@pytest.mark.parametrize(("skew", "fraction"), [(1.05, 0.1), (0.8, 0.3), (0.0, 0.5), (1.3, 0.01)])
def test_a_simulated_lru_cache_hits_as_calculated(skew: float, fraction: float) -> None:
    rows = 10_000
    cache = _Lru(int(rows * fraction))
    hits = [cache.hits(row) for row in _ids(rows, skew, 200_000).tolist()]
    calculated = LeastRecent(BoundedZipf(rows, skew), [int(rows * fraction)]).hit_rates()[0]
    assert np.mean(hits[100_000:]) == pytest.approx(calculated, abs=0.01)


def test_simulated_lru_tiers_hit_as_calculated() -> None:
    """Rows evicted from the first tier enter the second in the order of their last use."""
    rows, first, second = 5_000, 500, 1_500
    upper, both = _Lru(first), _Lru(first + second)
    outcomes = [(upper.hits(r), both.hits(r)) for r in _ids(rows, 0.9, 150_000).tolist()]
    in_upper, in_both = np.mean(outcomes[75_000:], axis=0)
    rates = LeastRecent(BoundedZipf(rows, 0.9), [first, second]).hit_rates()
    assert rates == pytest.approx((in_upper, in_both - in_upper, 1 - in_both), abs=0.01)


def test_a_simulated_lfu_cache_hits_as_calculated() -> None:
    rows, first = 5_000, 500
    counts = np.zeros(rows)
    ids = _ids(rows, 1.05, 400_000)
    np.add.at(counts, ids[:300_000], 1)
    kept = set(np.argsort(-counts)[:first].tolist())
    hits = np.mean([row in kept for row in ids[300_000:].tolist()])
    assert LeastFrequent(BoundedZipf(rows, 1.05), [first]).hit_rates()[0] == pytest.approx(
        hits, abs=0.01
    )


def test_a_simulated_cpu_cache_misses_as_calculated() -> None:
    rows, cached = 10_000, 400
    cache = _Lru(cached)
    hits = [cache.hits(row) for row in _ids(rows, 1.05, 150_000).tolist()]
    cpu = CpuCache(BoundedZipf(rows, 1.05), cached * 512, 512)
    passing = BoundedZipf(rows, 1.05).total(lambda p: p * cpu.miss_rate(p))
    assert passing == pytest.approx(1 - np.mean(hits[50_000:]), abs=0.01)
    none = CpuCache(BoundedZipf(rows, 1.05), 0, 512)
    assert none.miss_rate(np.array([0.1, 0.5])) == pytest.approx([1, 1])
    all_of_it = CpuCache(BoundedZipf(rows, 1.05), rows * 512, 512)
    assert all_of_it.miss_rate(np.array([0.1, 0.5])) == pytest.approx([0, 0])


def test_in_the_characteristic_time_as_many_rows_are_used_as_are_cached() -> None:
    zipf = BoundedZipf(10**9, 1.05)
    time = characteristic_time(zipf, 10**6)
    assert zipf.expected_distinct_rows(time) == pytest.approx(10**6, rel=1e-6)


@pytest.mark.parametrize(
    ("skew", "places", "cpu_rows"),
    [(1.05, 10_000, 0), (0.6, 5_000, 0), (1.05, 10_000, 500), (1.05, 4_000, 2_000)],
)
def test_a_simulated_direct_mapped_cache_misses_as_calculated(
    skew: float, places: int, cpu_rows: int
) -> None:
    rows, looked_up = 20_000, 400_000
    place = np.random.default_rng(3).integers(0, places, rows)
    tags = np.full(places, -1)
    cpu = _Lru(cpu_rows)
    misses = 0
    for step, row in enumerate(_ids(rows, skew, looked_up).tolist()):
        if cpu_rows and cpu.hits(row):
            continue
        missed = tags[place[row]] != row
        tags[place[row]] = row
        misses += missed and step >= looked_up // 2
    calculated = direct_mapped_misses(BoundedZipf(rows, skew), 64, 64 * places, 64 * cpu_rows)
    assert misses / (looked_up // 2) == pytest.approx(calculated, abs=0.01)


def test_a_larger_direct_mapped_cache_misses_less() -> None:
    zipf = BoundedZipf(10**9, 1.05)
    misses = [direct_mapped_misses(zipf, 512, gb * 10**9, 32 << 20) for gb in (8, 64, 192, 1000)]
    assert misses == sorted(misses, reverse=True)
    assert 0 < misses[-1] < misses[0] < 1
    assert direct_mapped_misses(BoundedZipf(100, 1.0), 512, 10**9, 1 << 30) == 0


@pytest.mark.parametrize("strategy", es.CacheStrategy, ids=lambda strategy: strategy.name)
def test_the_engine_hits_and_moves_rows_as_calculated(
    strategy: es.CacheStrategy, tmp_path: Path
) -> None:
    """Reads the engine's own counters of hits, misses and promotions in training."""
    rows, first, batch, skew, dim = 50_000, 5_000, 2_048, 1.05, 4
    option = es.StorageOption(
        storage_type=es.StorageType.DRAM_SSDHASH,
        storage_path=tmp_path,
        storage_size=[first * 2 * 16],
        cache_strategy=strategy,
    )
    ids = _ids(rows, skew, batch * 700)
    gradients = np.zeros((batch, dim), np.float32)
    adagrad = es.optimizers.Adagrad(learning_rate=0.1)
    with es.get_embedding_variable(
        "hits",
        embedding_dim=dim,
        initializer=es.initializers.Ones(),
        optimizer=adagrad,
        ev_option=es.EmbeddingVariableOption(storage_option=option),
    ) as variable:
        every = np.random.default_rng(5).permutation(rows).astype(np.int64)
        variable.apply_gradients(every, np.zeros((rows, dim), np.float32))
        before = variable.stats()
        for step, part in enumerate(ids.reshape(-1, batch)):
            if step == 400:  # the counts rank the rows by now
                before = variable.stats()
            variable.lookup(part, train=True)
            variable.apply_gradients(part, gradients)
            variable.drain()
        after = variable.stats()
    hits, misses, promotions = (
        after[name] - before[name] for name in ("hits", "misses", "promotions")
    )
    kind = LeastFrequent if strategy is es.CacheStrategy.LFU else LeastRecent
    placement = kind(BoundedZipf(rows, skew), [first])
    placed = DeviceAssignment(es.StorageType.DRAM_SSDHASH, (DRAM, DISK), DRAM)
    accesses = step_accesses(
        placed, placement, RowShape(dim, 1), batch_ids=batch, threads=1, training=True
    )
    assert hits + misses == batch * 300
    assert hits / (hits + misses) == pytest.approx(placement.hit_rates()[0], abs=0.015)
    assert promotions / (hits + misses) == pytest.approx(accesses.moved_rows, rel=0.1)


@pytest.mark.parametrize(("rows", "skew"), [(0, 1.0), (10, -0.1), (10, float("nan"))])
def test_an_impossible_distribution_is_refused(rows: int, skew: float) -> None:
    with pytest.raises(ValueError, match=r"(rows|skew) must"):
        BoundedZipf(rows, skew)
