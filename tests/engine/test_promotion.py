"""Serving look-ups promote only rows that outrank one above, and count the others below."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import (
    MakeVariable,
    Stack,
    StorageOf,
    on_device,
    row_bytes,
    variable_with_options,
)
from numpy.typing import NDArray

import embstore as es
from embstore.bench.zipf import BoundedZipf

DIM = 3
SGD = es.optimizers.SGD(0.1)
ROW_BYTES = row_bytes(DIM, SGD)

Ids = NDArray[np.int64]

STACKS = [
    Stack(es.StorageType.DRAM_PMEM),
    Stack(es.StorageType.DRAM_PMEM, memkind=True),
    Stack(es.StorageType.DRAM_SSDHASH),
    Stack(es.StorageType.DRAM_PMEM_SSDHASH),
    Stack(es.StorageType.HBM_DRAM),
    Stack(es.StorageType.HBM_DRAM_SSDHASH),
]


class Ranks:
    """The rank of each of the keys 0..count-1, counted plainly."""

    def __init__(self, count: int) -> None:
        self.accesses: Ids = np.zeros(count, np.int64)
        self.last: Ids = np.zeros(count, np.int64)
        self._now = 0

    def access(self, ids: Ids) -> None:
        np.add.at(self.accesses, ids, 1)
        self.last[ids] = self._now + np.arange(ids.size)  # the last of equal ids is kept
        self._now += ids.size

    def tiers(self, capacities: list[int]) -> list[int]:
        """Returns the tier of each key's row once nothing moves."""
        tiers: Ids = np.full(self.accesses.size, len(capacities), np.int64)
        hottest = np.lexsort((self.last, self.accesses))[::-1]
        for tier, capacity in enumerate(capacities):
            tiers[hottest[:capacity]] = tier
            hottest = hottest[capacity:]
        return [int(tier) for tier in tiers]


def train(var: es.EmbeddingVariable, ranks: Ranks, ids: Ids) -> None:
    var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32))
    ranks.access(ids)


def serve(
    var: es.EmbeddingVariable, ranks: Ranks, ids: Ids, place: Callable[[Ids], Any] = np.asarray
) -> None:
    var.lookup(place(ids))
    ranks.access(ids)


def tiers_of(var: es.EmbeddingVariable) -> list[int]:
    var.drain()
    return [int(tier) for tier in var.lookup_tier(np.arange(var.total_count()[0]))]


ON_THE_HOST = [(stack, np.asarray) for stack in STACKS]
ON_THE_GPU = [(stack, on_device) for stack in STACKS if stack.name.startswith("HBM")]


@pytest.mark.parametrize(
    ("stack", "place"),
    [*ON_THE_HOST, *ON_THE_GPU],
    ids=lambda case: case.name if isinstance(case, Stack) else case.__name__,
)
def test_few_misses_promote_a_row_and_all_of_them_count(
    make_variable: MakeVariable,
    storage_of: StorageOf,
    tmp_path: Path,
    stack: Stack,
    place: Callable[[Ids], Any],
) -> None:
    rows, batch = 12_000, 6_000
    capacities = [rows // 4] * (stack.tiers - 1)
    storage = storage_of(stack, 2 * rows * ROW_BYTES, upper_bytes=capacities[0] * ROW_BYTES)
    var = make_variable(dim=DIM, optimizer=SGD, storage=storage, name="var")
    ranks = Ranks(rows)
    train(var, ranks, np.random.default_rng(1).permutation(rows))
    zipf = BoundedZipf(rows, 0.99, seed=2)
    for _ in range(40):  # until a row has been asked for 20 times
        serve(var, ranks, zipf.draw(batch), place)
    assert tiers_of(var) == ranks.tiers(capacities)

    before = var.stats()
    for n in range(20):
        serve(var, ranks, zipf.draw(batch), place)
        if n % 10 == 9:
            var.drain()
    after = var.stats()
    missed = after["misses"] - before["misses"]
    assert missed > 0.1 * 20 * batch
    promotions = after["promotions"] - before["promotions"]
    assert promotions > 0
    assert promotions <= 0.2 * missed * (stack.tiers - 1)
    assert tiers_of(var) == ranks.tiers(capacities)

    # Counts of rows that stayed below are saved and restored, and move with their rows.
    es.save(tmp_path / "save", [var], 0)
    es.restore(tmp_path / "save", [var])
    assert tiers_of(var) == ranks.tiers(capacities)
    assert var.get_frequency(np.arange(rows)).tolist() == [1] * rows
    for _ in range(3):
        serve(var, ranks, zipf.draw(batch), place)
        train(var, ranks, np.unique(zipf.draw(batch)))
    assert tiers_of(var) == ranks.tiers(capacities)


@pytest.mark.parametrize(
    "stack",
    [
        Stack(es.StorageType.DRAM_PMEM),
        Stack(es.StorageType.DRAM_PMEM_SSDHASH),
        Stack(es.StorageType.HBM_DRAM),
    ],
    ids=lambda stack: stack.name,
)
def test_many_ids_that_miss_are_counted_by_several_threads(
    make_variable: MakeVariable, storage_of: StorageOf, stack: Stack
) -> None:
    rows, batch = 40_000, 25_000  # more ids miss than one thread would count
    capacities = [rows // 8] * (stack.tiers - 1)
    storage = storage_of(stack, 2 * rows * ROW_BYTES, upper_bytes=capacities[0] * ROW_BYTES)
    var = make_variable(dim=DIM, optimizer=SGD, storage=storage)
    ranks = Ranks(rows)
    rng = np.random.default_rng(3)
    train(var, ranks, rng.permutation(rows))
    for _ in range(3):
        for _ in range(3):
            serve(var, ranks, rng.integers(rows, size=batch))
        assert tiers_of(var) == ranks.tiers(capacities)
    assert var.stats()["misses"] > 0.5 * 9 * batch


UPPER, LOWER = np.arange(10), np.arange(10, 200)


def table_with_hot_rows_above(var: es.EmbeddingVariable, capacities: list[int]) -> Ranks:
    """Fills the first tier with ten rows that rank by 9 accesses, above others that rank by 1."""
    ranks = Ranks(LOWER[-1] + 1)
    train(var, ranks, np.concatenate([LOWER, UPPER]))
    for _ in range(8):
        serve(var, ranks, UPPER)
    assert tiers_of(var) == ranks.tiers(capacities)
    return ranks


@pytest.mark.parametrize(
    "stack",
    [
        Stack(es.StorageType.DRAM_PMEM_SSDHASH),
        Stack(es.StorageType.DRAM_PMEM_LEVELDB),
        Stack(es.StorageType.HBM_DRAM_SSDHASH),
        Stack(es.StorageType.HBM_DRAM_PMEM),
    ],
    ids=lambda stack: stack.name,
)
def test_a_row_comes_up_no_further_than_it_outranks_others(
    make_variable: MakeVariable, storage_of: StorageOf, stack: Stack
) -> None:
    storage = storage_of(stack, 1 << 20, upper_bytes=UPPER.size * ROW_BYTES)
    var = make_variable(dim=DIM, optimizer=SGD, storage=storage)
    capacities = [UPPER.size] * 2
    ranks = table_with_hot_rows_above(var, capacities)
    before = var.stats()
    some = LOWER[:6]
    assert var.lookup_tier(some).tolist() == [2] * some.size
    serve(var, ranks, some)
    assert tiers_of(var) == ranks.tiers(capacities)
    assert var.lookup_tier(some).tolist() == [1] * some.size
    after = var.stats()
    assert after["promotions"] - before["promotions"] == some.size
    assert after["demotions"] - before["demotions"] == some.size
    for _ in range(9):  # now they outrank rows of the first tier
        serve(var, ranks, some)
    assert tiers_of(var) == ranks.tiers(capacities)
    assert var.lookup_tier(some).tolist() == [0] * some.size


@pytest.mark.parametrize(
    "stack",
    [Stack(es.StorageType.DRAM_PMEM), Stack(es.StorageType.DRAM_SSDHASH)],
    ids=lambda stack: stack.name,
)
def test_accesses_that_were_counted_below_go_with_a_row_that_is_trained(
    make_variable: MakeVariable, storage_of: StorageOf, stack: Stack
) -> None:
    storage = storage_of(stack, 1 << 20, upper_bytes=UPPER.size * ROW_BYTES)
    var = make_variable(dim=DIM, optimizer=SGD, storage=storage)
    ranks = table_with_hot_rows_above(var, [UPPER.size])
    promotions = var.stats()["promotions"]
    var.lookup(LOWER, train=True)  # the rows that it read are kept for the update
    for _ in range(5):
        serve(var, ranks, LOWER)
    assert tiers_of(var) == ranks.tiers([UPPER.size])
    assert var.stats()["promotions"] == promotions
    train(var, ranks, LOWER[:20])
    assert tiers_of(var) == ranks.tiers([UPPER.size])
    for _ in range(2):
        serve(var, ranks, LOWER[:20])
    assert tiers_of(var) == ranks.tiers([UPPER.size])
    assert var.lookup_tier(LOWER[:20]).tolist() == [1] * 10 + [0] * 10


def test_accesses_that_were_counted_below_outlive_compaction(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, tmp_path],
        [UPPER.size * ROW_BYTES],
        ssdhash_option=es.SSDHashOption(file_bytes=64 << 10, buffer_bytes=128 << 10),
    )
    var = make_variable(dim=DIM, optimizer=SGD, storage=storage)
    counted, rows = 3_000, 9_000
    ranks = Ranks(rows)
    train(var, ranks, np.random.default_rng(3).permutation(rows))
    var.drain()
    first_files = set(tmp_path.rglob("rows-*"))  # each has some of the rows that are counted
    serve(var, ranks, np.repeat(np.arange(counted), 3))
    for _ in range(6):  # the other rows leave their slots, and come back
        train(var, ranks, np.arange(counted, rows))
        var.drain()
    left = first_files & set(tmp_path.rglob("rows-*"))
    assert len(left) < len(first_files) / 2, "few rows were moved by compaction"
    for _ in range(3):
        serve(var, ranks, np.arange(counted))
        assert tiers_of(var) == ranks.tiers([UPPER.size])


def test_accesses_that_were_counted_below_are_kept_with_the_files(tmp_path: Path) -> None:
    def open_variable() -> es.EmbeddingVariable:
        storage = es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            [None, tmp_path],
            [UPPER.size * ROW_BYTES],
            ssdhash_option=es.SSDHashOption(keep_files=True),
        )
        return variable_with_options("var", DIM, storage, optimizer=SGD)

    with open_variable() as var:
        ranks = table_with_hot_rows_above(var, [UPPER.size])
        for _ in range(5):
            serve(var, ranks, LOWER)
        var.drain()
    with open_variable() as var:
        # Rows of kept files come up only as they are used.
        for ids in (UPPER, LOWER[:15], LOWER[:15], LOWER[:15]):
            serve(var, ranks, ids)
            var.drain()
        assert tiers_of(var) == ranks.tiers([UPPER.size])


def test_a_row_that_comes_up_by_one_access_has_the_time_of_a_later_one_of_the_batch(
    make_variable: MakeVariable, storage_of: StorageOf
) -> None:
    """A log keeps no access times: a promotion takes that of the last access from the batch."""
    storage = storage_of(
        Stack(es.StorageType.DRAM_PMEM_SSDHASH), 64 * ROW_BYTES, upper_bytes=4 * ROW_BYTES
    )
    var = make_variable(dim=DIM, optimizer=SGD, storage=storage)
    in_log, in_pmem, in_dram = np.split(np.arange(12), 3)
    ranks = Ranks(12)
    train(var, ranks, np.arange(12))
    assert tiers_of(var) == [2] * 4 + [1] * 4 + [0] * 4
    key, (*others, last) = in_log[0], in_dram
    # With its first access the key outranks PMem's rows of one access, with its second DRAM's of
    # two.
    serve(var, ranks, np.array([key, *others, last, last, key]))
    end = time.monotonic() + 60
    while var.stats()["promotions"] == 0:  # drain() would count it with the accesses that follow
        assert time.monotonic() < end
        time.sleep(0.01)
    serve(var, ranks, np.array([*others, *others, *in_pmem[1:]]))
    assert tiers_of(var) == ranks.tiers([4, 4])
