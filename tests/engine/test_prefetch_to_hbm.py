"""Prefetched batches: their rows come up to HBM in time, and nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import (
    MakeVariable,
    on_device,
    skip_without_library,
)
from exports import assert_same
from numpy.typing import NDArray

import embstore as es
from embstore.errors import ClosedError, InvalidArgumentError

pytestmark = pytest.mark.timeout(120)

DIM = 3
ROW_BYTES = 32  # weights and an accumulator
HBM_ROWS = 40
HOT = np.arange(HBM_ROWS)  # fill HBM, and rank above all others
COLD = np.arange(100, 160)  # lie below HBM
KINDS = [
    es.StorageType.HBM_DRAM,
    es.StorageType.HBM_DRAM_SSDHASH,
    es.StorageType.HBM_DRAM_LEVELDB,
]

Ids = NDArray[np.int64]
ToIds = Callable[[Ids], Any]


@pytest.fixture(params=["host", "device"])
def ids_on(request: pytest.FixtureRequest) -> ToIds:
    """Returns the function that puts ids on the host or on the device."""
    return on_device if request.param == "device" else np.asarray


def ones(ids: Ids) -> NDArray[np.float32]:
    return np.ones((*ids.shape, DIM), np.float32)


def hbm(kind: es.StorageType = es.StorageType.HBM_DRAM, path: Path | None = None) -> Any:
    skip_without_library(kind)
    sizes = [HBM_ROWS * ROW_BYTES, 1 << 20]
    if kind is not es.StorageType.HBM_DRAM:
        sizes[1] = 10 * ROW_BYTES  # so that most rows are in the tier below
    return es.StorageOption(kind, path, sizes)


def trained(make_variable: MakeVariable, storage: Any = None, **options: Any) -> Any:
    """Returns a variable whose HBM is full of the rows that rank highest."""
    var = make_variable(storage=storage or hbm(), **options)
    var.apply_gradients(COLD, ones(COLD))
    for _ in range(5):
        var.apply_gradients(HOT, ones(HOT))
    var.drain()
    assert set(var.lookup_tier(HOT)) == {0}
    assert 0 not in var.lookup_tier(COLD)
    return var


def count_in_hbm(var: es.EmbeddingVariable, ids: Ids) -> int:
    """Returns how many of the rows are in HBM once nothing moves."""
    var.drain()
    return int((var.lookup_tier(ids) == 0).sum())


# --- Rows come up


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_prefetched_rows_come_up_unchanged(
    make_variable: MakeVariable, kind: es.StorageType, tmp_path: Path, ids_on: ToIds
) -> None:
    var = trained(make_variable, hbm(kind, tmp_path if kind is not KINDS[0] else None))
    before = var.export()
    batch = np.r_[COLD[:10], COLD[:3]]
    var.prefetch(ids_on(batch))
    assert count_in_hbm(var, batch) == batch.size
    assert_same(var.export(), before)
    stats = var.stats()
    var.lookup(batch, train=True)
    assert var.stats()["misses"] == stats["misses"]
    assert stats["promotions"] == 10
    assert [tier["rows"] <= tier["capacity_rows"] for tier in stats["tiers"][:2]] == [True] * 2


def test_rows_come_up_in_the_background(make_variable: MakeVariable, ids_on: ToIds) -> None:
    var = trained(make_variable)
    batch = ids_on(COLD[:10])
    var.prefetch(batch)
    until = time.monotonic() + 60
    while set(var.lookup_tier(COLD[:10])) != {0}:
        assert time.monotonic() < until, "rows stay below"
        if isinstance(batch, es.DeviceArray):
            batch.numpy()  # the emulated device's streams go on while a caller waits
        time.sleep(0.001)


@pytest.mark.parametrize("partitions", [2, 3])
def test_rows_of_partitions_come_up(make_variable: MakeVariable, partitions: int) -> None:
    var = make_variable(storage=hbm(), partition_num=partitions)
    ids = np.arange(600)
    var.apply_gradients(ids, ones(ids))
    var.drain()
    below = ids[var.lookup_tier(ids) == 1][:20]
    var.prefetch(below[:10], on_device(below[10:]))
    assert count_in_hbm(var, below) == 20


def test_a_batch_may_have_ids_on_the_host_and_on_the_device(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    var.prefetch(COLD[:5], on_device(COLD[5:10]), COLD[10:12].reshape(2, 1), on_device(COLD[12:15]))
    assert count_in_hbm(var, COLD) == 15


def test_hbm_alone_has_nothing_to_bring_up(make_variable: MakeVariable, ids_on: ToIds) -> None:
    storage = es.StorageOption(es.StorageType.HBM, storage_size=[HBM_ROWS * ROW_BYTES])
    var = make_variable(storage=storage)
    var.apply_gradients(HOT, ones(HOT))
    var.prefetch(ids_on(HOT))
    assert count_in_hbm(var, HOT) == HBM_ROWS


# --- Rows stay


def test_rows_stay_until_their_batch_is_trained_and_go_then(
    make_variable: MakeVariable, ids_on: ToIds
) -> None:
    var = trained(make_variable)
    first, second = COLD[:20], COLD[20:40]
    var.prefetch(ids_on(first))
    var.prefetch(ids_on(second))
    assert count_in_hbm(var, np.r_[first, second]) == 40
    others = np.arange(1000, 1040)
    var.apply_gradients(first, ones(first))
    assert count_in_hbm(var, second) == 20
    for _ in range(3):
        var.lookup(others)  # unknown ids bring nothing
    var.apply_gradients(second, ones(second))
    for _ in range(9):
        var.apply_gradients(others, ones(others))
    assert count_in_hbm(var, second) == 0
    assert count_in_hbm(var, others) == HBM_ROWS


def test_a_batch_that_is_prefetched_in_the_middle_of_a_step_is_that_of_the_next(
    make_variable: MakeVariable, ids_on: ToIds
) -> None:
    var = trained(make_variable)
    var.lookup(HOT[:5], train=True)
    var.prefetch(ids_on(COLD[:20]))
    var.apply_gradients(HOT[:5], ones(HOT[:5]))
    assert count_in_hbm(var, COLD[:20]) == 20
    hotter = np.arange(1000, 1040)
    for _ in range(9):
        var.apply_gradients(hotter, ones(hotter))
    assert count_in_hbm(var, COLD[:20]) == 0


@pytest.mark.parametrize("count", [False, True])
def test_a_look_up_that_no_update_follows_delays_no_batch(
    make_variable: MakeVariable, ids_on: ToIds, count: bool
) -> None:
    var = trained(make_variable)
    var.lookup(ids_on(HOT[:5]), count=count)
    var.prefetch(ids_on(COLD[:20]))
    var.apply_gradients(COLD[:20], ones(COLD[:20]))
    var.prefetch(COLD[20:60])
    assert count_in_hbm(var, COLD[20:60]) == HBM_ROWS  # so none of the first batch stays


def test_a_later_batch_takes_no_room_from_an_earlier_one(
    make_variable: MakeVariable, ids_on: ToIds
) -> None:
    var = trained(make_variable)
    for batch in (COLD[:30], COLD[20:60], COLD[40:60]):
        var.prefetch(ids_on(batch))
    assert count_in_hbm(var, COLD[:30]) == 30
    assert count_in_hbm(var, COLD) == HBM_ROWS
    promotions = var.stats()["promotions"]
    for _ in range(3):
        var.prefetch(ids_on(COLD[40:60]))
    assert count_in_hbm(var, COLD[:30]) == 30
    assert var.stats()["promotions"] == promotions  # no row goes up and down in turns


def test_as_much_of_a_batch_larger_than_hbm_comes_up_as_fits(
    make_variable: MakeVariable, ids_on: ToIds
) -> None:
    var = trained(make_variable)
    var.prefetch(ids_on(COLD))
    assert count_in_hbm(var, COLD) == HBM_ROWS
    rows = var.lookup(COLD, train=True)
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
    var.apply_gradients(COLD, ones(COLD))
    assert var.get_frequency(COLD).tolist() == [2] * COLD.size


def test_rows_that_are_in_hbm_already_come_first(
    make_variable: MakeVariable, ids_on: ToIds
) -> None:
    var = trained(make_variable)
    promotions = var.stats()["promotions"]
    var.prefetch(ids_on(np.r_[COLD, HOT]))
    assert count_in_hbm(var, HOT) == HBM_ROWS
    assert var.stats()["promotions"] == promotions


def test_batches_that_never_come_are_forgotten(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    var.prefetch(COLD)
    for _ in range(16):
        var.prefetch(HOT[:1])
    var.prefetch(COLD[-30:])
    assert count_in_hbm(var, COLD[-30:]) == 30


# --- Nothing else changes


def test_a_prefetch_makes_no_row_and_counts_nothing(
    make_variable: MakeVariable, ids_on: ToIds
) -> None:
    var = trained(make_variable, filter=es.CounterFilter(filter_freq=3))
    waiting = np.arange(500, 510)
    var.apply_gradients(waiting, ones(waiting))
    var.drain()
    before = var.stats()
    counts = var.get_frequency(np.r_[waiting, HOT])
    for _ in range(4):
        var.prefetch(ids_on(np.r_[waiting, 999, HOT[:3]]))
        var.drain()
    after = var.stats()
    np.testing.assert_array_equal(var.get_frequency(np.r_[waiting, HOT]), counts)
    assert set(var.lookup_tier([*waiting, 999])) == {-1}
    for name in ("hits", "misses", "without_row", "waiting_keys", "promotions", "demotions"):
        assert after[name] == before[name], name
    assert var.total_count() == (HBM_ROWS, DIM)


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_an_empty_batch_counts_as_a_batch(
    make_variable: MakeVariable, ids_on: ToIds, shape: tuple[int, ...]
) -> None:
    var = trained(make_variable)
    var.prefetch(ids_on(np.empty(shape, np.int64)))
    var.prefetch()
    var.prefetch(COLD[:20])
    none = np.empty(0, np.int64)
    for _ in range(2):
        var.apply_gradients(none, ones(none))
    assert count_in_hbm(var, COLD[:20]) == 20


def test_ids_of_another_type_are_refused(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    with pytest.raises(InvalidArgumentError, match="ids must be int64"):
        var.prefetch(np.zeros(3, np.float32))
    with pytest.raises(InvalidArgumentError, match="ids must be int64, got float32"):
        var.prefetch(on_device([1.0], np.float32))
    assert count_in_hbm(var, HOT) == HBM_ROWS


def test_a_closed_variable_refuses_a_prefetch(make_variable: MakeVariable, ids_on: ToIds) -> None:
    var = trained(make_variable)
    for start in range(0, 60, 20):
        var.prefetch(ids_on(COLD[start : start + 20]))
    var.close()  # while rows are on their way
    with pytest.raises(ClosedError):
        var.prefetch(ids_on(COLD))


def batches(steps: int) -> Iterator[Ids]:
    for step in range(steps):
        random = np.random.default_rng(step)
        yield np.minimum(random.zipf(1.2, (6, 5)), 300).astype(np.int64) * 7919


def trained_by(var: es.EmbeddingVariable, steps: Iterator[Ids], to_ids: ToIds) -> list[Any]:
    """Trains the steps. Returns the rows that each of them looked up."""
    seen = []
    for step, ids in enumerate(steps):
        rows = var.lookup(to_ids(ids), train=True)
        seen.append(rows.numpy() if isinstance(rows, es.DeviceArray) else rows)
        grads = np.tanh(seen[-1]) + np.float32(step)
        if to_ids is on_device:
            var.apply_gradients(on_device(ids), on_device(grads, np.float32))
        else:
            var.apply_gradients(ids, grads)
    return seen


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_loop_with_prefetches_trains_as_one_in_dram(
    make_variable: MakeVariable, kind: es.StorageType, depth: int, tmp_path: Path, ids_on: ToIds
) -> None:
    initializer = es.initializers.RandomUniform(-1.0, 1.0, seed=7)
    plain = make_variable(initializer=initializer)
    var = make_variable(
        initializer=initializer, storage=hbm(kind, tmp_path if kind is not KINDS[0] else None)
    )
    expected = trained_by(plain, batches(60), np.asarray)
    pulled = es.prefetching(batches(60), {var: ids_on}, depth=depth)
    for got, wanted in zip(trained_by(var, pulled, ids_on), expected, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))
    assert_same(var.export(), plain.export())
    assert var.stats()["background_error"] == ""


def test_a_loop_with_prefetches_misses_fewer_rows(make_variable: MakeVariable) -> None:
    """Each batch lies below HBM when its turn comes, unless it was prefetched."""
    misses = []
    for asks in (True, False):
        var = trained(make_variable)
        seen = var.stats()["misses"]
        for start in range(0, 60, 10):
            batch = COLD[start : start + 10]
            if asks:
                var.prefetch(batch)
                var.drain()
            var.lookup(batch, train=True)
            var.apply_gradients(batch, ones(batch))
        misses.append(var.stats()["misses"] - seen)
    assert misses == [0, 60]


def test_a_loop_that_ends_early_lets_rows_go(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    for _ in es.prefetching(iter([COLD[:20], COLD[20:40]]), {var: lambda ids: ids}):
        break
    var.prefetch(COLD[40:60], HOT[:20])
    assert count_in_hbm(var, np.r_[COLD[40:60], HOT[:20]]) == 40


def test_a_loop_whose_variable_closes_may_end(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    for _ in es.prefetching(iter([COLD[:20], COLD[20:40]]), {var: lambda ids: ids}):
        var.close()
        break
