"""Counters that `stats()` returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_storage import MIB, MakeVariable, Stack, StorageOf

import embstore as es

ROW_BYTES = 32


def counted(var: es.EmbeddingVariable, before: dict[str, Any]) -> tuple[int, int]:
    after = var.stats()
    return after["hits"] - before["hits"], after["misses"] - before["misses"]


@pytest.mark.parametrize("partition_num", [1, 3])
@pytest.mark.parametrize("train", [False, True], ids=["serving", "training"])
def test_hits_are_ids_whose_row_was_in_the_first_tier_and_misses_all_others(
    make_variable: MakeVariable,
    tiered_stack: Stack,
    storage_of: StorageOf,
    partition_num: int,
    train: bool,
) -> None:
    var = make_variable(
        storage=storage_of(tiered_stack, 64 * ROW_BYTES, upper_bytes=4 * ROW_BYTES),
        partition_num=partition_num,
    )
    ids = np.arange(20)
    var.apply_gradients(ids, np.ones((20, 3), np.float32))
    var.drain()
    upper = ids[var.lookup_tier(ids) == 0]
    lower = ids[var.lookup_tier(ids) > 0]
    assert (upper.size, lower.size) == (4 * partition_num, 20 - 4 * partition_num)

    before = var.stats()
    unknown = np.array([100, -100, 101])
    batch = np.concatenate([upper, upper[:2], lower, lower[:3], unknown])
    var.lookup(batch.reshape(-1, 1), train=train)
    assert counted(var, before) == (upper.size + 2, lower.size + 3 + 3)
    assert var.stats()["without_row"] - before["without_row"] == 3


@pytest.mark.parametrize("partition_num", [1, 3])
def test_keys_that_a_filter_keeps_out_have_no_row(
    make_variable: MakeVariable, partition_num: int
) -> None:
    var = make_variable(filter=es.CounterFilter(3), partition_num=partition_num)
    var.apply_gradients([1, 1, 1, 2], np.ones((4, 3), np.float32))
    var.lookup([1, 2, 2, 3])
    stats = var.stats()
    assert (stats["hits"], stats["misses"], stats["without_row"]) == (1, 3, 3)


@pytest.mark.parametrize("partition_num", [1, 3])
def test_only_look_ups_are_counted(make_variable: MakeVariable, partition_num: int) -> None:
    var = make_variable(partition_num=partition_num)
    var.apply_gradients([1, 2], np.ones((2, 3), np.float32))
    var.export()
    var.get_frequency([1])
    var.get_version([1])
    var.lookup_tier([1])
    assert counted(var, {"hits": 0, "misses": 0}) == (0, 0)
    var.lookup([])
    assert counted(var, {"hits": 0, "misses": 0}) == (0, 0)
    var.lookup([1, 1, 7])
    assert counted(var, {"hits": 0, "misses": 0}) == (2, 1)


@pytest.mark.parametrize("partition_num", [1, 3])
def test_waiting_keys_are_those_below_their_filters_threshold(
    make_variable: MakeVariable, partition_num: int
) -> None:
    var = make_variable(filter=es.CounterFilter(3), partition_num=partition_num)
    ids = np.array([1, 1, 1, 2, 2, 3, 4])
    var.apply_gradients(ids, np.ones((7, 3), np.float32))
    assert var.stats()["waiting_keys"] == 3
    var.apply_gradients([2], np.ones((1, 3), np.float32))
    assert var.stats()["waiting_keys"] == 2
    assert sum(tier["rows"] for tier in var.stats()["tiers"]) == 2


@pytest.mark.parametrize("filter_freq", [None, 1000], ids=["no filter", "waiting keys"])
@pytest.mark.parametrize("partition_num", [1, 2])
@pytest.mark.parametrize(
    "storage_type", [es.StorageType.DRAM, es.StorageType.DRAM_SSDHASH], ids=lambda kind: kind.name
)
def test_the_index_does_not_grow_for_keys_that_have_a_row_or_that_get_none(
    make_variable: MakeVariable,
    storage_of: StorageOf,
    storage_type: es.StorageType,
    partition_num: int,
    filter_freq: int | None,
) -> None:
    var = make_variable(
        storage=storage_of(storage_type, 64 * MIB),
        partition_num=partition_num,
        filter=None if filter_freq is None else es.CounterFilter(filter_freq=filter_freq),
    )
    ids = np.arange(100_000)
    gradients = np.ones((ids.size, 3), np.float32)
    empty = var.stats()["index_bytes"]
    for part in np.array_split(ids, 50):
        var.apply_gradients(part, gradients[: part.size])
    index_bytes = var.stats()["index_bytes"]
    if filter_freq is None:
        assert index_bytes < 24 * ids.size
    else:
        assert index_bytes == empty
    for _ in range(3):
        var.apply_gradients(ids, gradients)
    assert var.stats()["index_bytes"] == index_bytes


def test_the_index_grows_for_the_new_keys_of_a_batch_alone(make_variable: MakeVariable) -> None:
    var = make_variable()
    random = np.random.default_rng(1)
    rows, batch = 0, 20_000
    while rows < 200_000:
        rows += 500
        ids = np.concatenate([np.arange(rows - 500, rows), random.integers(0, rows, batch)])
        var.apply_gradients(ids, np.ones((ids.size, 3), np.float32))
        if rows >= 20_000:
            assert var.stats()["index_bytes"] < 24 * rows
    assert var.total_count() == (rows, 3)
