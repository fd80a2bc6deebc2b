"""Threads that train, read, drain and export several variables while their rows move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from engine_storage import MakeVariable, Stack, StorageOf, capacities_of
from numpy.typing import NDArray

import embstore as es
from embstore.errors import ClosedError

pytestmark = pytest.mark.timeout(120)  # a lock that is never released hangs

DIM, KEYS, ROW_BYTES = 20, 600, 80  # SGD has no slots

Counts = NDArray[np.int64]


class CountingVariable:
    """A variable whose rows hold how often their key was trained, beside a plain count of that.

    Steps of 1 on small integers are exact, so the order of threads doesn't show.
    """

    def __init__(self, make_variable: MakeVariable, storage: es.StorageOption) -> None:
        self.var = make_variable(
            dim=DIM,
            storage=storage,
            optimizer=es.optimizers.SGD(1.0),
            initializer=es.initializers.Zeros(),
        )
        self.capacities = capacities_of(storage, ROW_BYTES)
        self._lock = threading.Lock()
        self._began: Counts = np.zeros(KEYS, np.int64)
        self._ended: Counts = np.zeros(KEYS, np.int64)

    def train(self, ids: Counts) -> None:
        with self._lock:
            np.add.at(self._began, ids, 1)
        self.var.apply_gradients(ids, np.full((ids.size, DIM), -1, np.float32))
        with self._lock:
            np.add.at(self._ended, ids, 1)

    def read(self, ids: Counts, *, train: bool) -> None:
        least = self._ended[ids]
        rows = self.var.lookup(ids, train=train)
        self._check(ids, rows, least)

    def export(self) -> None:
        least = self._ended.copy()
        export = self.var.export()
        keys = export["keys"]
        assert (np.diff(keys) > 0).all()
        self._check(keys, export["values"], least[keys])
        np.testing.assert_array_equal(export["freqs"], export["values"][:, 0])
        assert set(np.flatnonzero(least)) <= set(keys.tolist())

    def _check(self, ids: Counts, rows: NDArray[np.float32], least: Counts) -> None:
        assert (rows == rows[:, :1]).all(), "a row is torn"
        assert (rows[:, 0] >= least).all(), "an update was lost"
        assert (rows[:, 0] <= self._began[ids]).all(), "an update was doubled"

    def check_at_rest(self) -> None:
        self.var.drain()
        np.testing.assert_array_equal(self._began, self._ended)
        keys = np.flatnonzero(self._ended)
        export = self.var.export()
        np.testing.assert_array_equal(export["keys"], keys)
        np.testing.assert_array_equal(export["freqs"], self._ended[keys])
        assert (export["values"] == self._ended[keys][:, None]).all()
        left = keys.size
        for tier, capacity in zip(self.var.stats()["tiers"], self.capacities, strict=True):
            wanted = left if capacity is None else min(left, capacity)
            assert tier["rows"] == wanted, tier["name"]
            left -= wanted
        tiers = self.var.lookup_tier(keys)
        in_tiers = [tier["rows"] for tier in self.var.stats()["tiers"]]
        assert np.bincount(tiers, minlength=len(in_tiers)).tolist() == in_tiers


def in_threads(works: list[Callable[[], None]]) -> None:
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        start.wait()
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(run, work) for work in works]:
            done.result()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("upper_rows", [3, 40])
def test_rows_that_move_under_threads_are_never_lost_doubled_or_torn(
    make_variable: MakeVariable,
    tiered_stack: Stack,
    storage_of: StorageOf,
    upper_rows: int,
    seed: int,
) -> None:
    storages = [
        storage_of(
            tiered_stack,
            (KEYS + 100) * ROW_BYTES,
            upper_bytes=upper_rows * ROW_BYTES,
            cache_strategy=strategy,
        )
        for strategy in es.CacheStrategy
    ]
    variables = [CountingVariable(make_variable, storage) for storage in storages]

    def work(number: int) -> None:
        random = np.random.default_rng([seed, number])
        for _ in range(40):
            variable = variables[random.integers(len(variables))]
            # Skewed, so that some rows stay and others come and go.
            ids = (random.random(random.integers(1, 200)) ** 3 * KEYS).astype(np.int64)
            match random.integers(10):
                case 0:
                    variable.export()
                case 1:
                    variable.var.drain()
                case 2 | 3 | 4:
                    variable.read(ids, train=False)
                case 5 | 6:
                    variable.read(ids, train=True)
                case _:
                    variable.train(ids)

    in_threads([partial(work, number) for number in range(4)])
    for variable in variables:
        variable.check_at_rest()


def test_ranks_that_threads_raise_during_demotions_count(
    make_variable: MakeVariable, tiered_stack: Stack, storage_of: StorageOf
) -> None:
    storage = storage_of(tiered_stack, 500 * ROW_BYTES, upper_bytes=40 * ROW_BYTES)
    check_that_the_hottest_are_above(CountingVariable(make_variable, storage))


@pytest.mark.long
def test_no_row_is_demoted_instead_of_a_colder_one_that_is_being_trained(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    """In one try of 90, some rows to be demoted are promoted meanwhile, and others are pinned."""
    for number in range(600):
        storage = es.StorageOption(
            es.StorageType.DRAM_PMEM_SSDHASH,
            storage_path=str(tmp_path / str(number)),
            storage_size=[40 * ROW_BYTES, 40 * ROW_BYTES],
        )
        variable = CountingVariable(make_variable, storage)
        check_that_the_hottest_are_above(variable)
        variable.var.close()


def check_that_the_hottest_are_above(variable: CountingVariable) -> None:
    """Trains in threads, each of which has keys of its own, so that all counts are known."""
    threads, keys = 4, 50

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        own = number * keys + np.arange(keys)
        for key in own:  # so that no two counts are the same: ties go by time
            variable.train(np.full(key + 1, key))
        for _ in range(30):
            variable.train(random.permutation(own))

    in_threads([partial(work, number) for number in range(threads)])
    variable.check_at_rest()
    lowest = len(variable.capacities) - 1
    wanted = np.repeat(range(6), 40)[: threads * keys].clip(max=lowest)
    hottest_first = np.arange(threads * keys)[::-1]
    np.testing.assert_array_equal(variable.var.lookup_tier(hottest_first), wanted)


def test_closing_waits_for_rows_that_move(
    make_variable: MakeVariable, tiered_stack: Stack, tmp_path: Path
) -> None:
    for round_number in range(4):
        sizes = [4 * ROW_BYTES] * (tiered_stack.tiers - 1) + [1 << 20]
        variable = CountingVariable(make_variable, tiered_stack.option(tmp_path, sizes))
        in_threads(
            [
                partial(close_after, variable, round_number),
                *(partial(use_until_closed, variable, seed) for seed in range(3)),
            ]
        )
        assert list(tmp_path.iterdir()) == []


def close_after(variable: CountingVariable, reads: int) -> None:
    for _ in range(reads):
        variable.read(np.arange(KEYS), train=False)
    variable.var.close()


def use_until_closed(variable: CountingVariable, seed: int) -> None:
    random = np.random.default_rng(seed)
    with pytest.raises(ClosedError):  # noqa: PT012 - by whichever call comes too late
        while True:
            variable.train(random.integers(0, KEYS, 150))
            variable.read(random.integers(0, KEYS, 150), train=False)
