"""Filters: a key that was seen too seldom reads a constant, is not trained, and has no row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from engine_storage import MIB, MakeVariable, Stack, StorageOf, variable_with_options
from exports import assert_same
from numpy.typing import NDArray

import embstore as es

Filter = es.CounterFilter | es.CBFFilter
Make = Callable[..., es.EmbeddingVariable]


def step(variable: es.EmbeddingVariable, ids: Sequence[int]) -> NDArray[np.float32]:
    """Runs a training step with a gradient of 2 an occurrence. Returns the rows read before it."""
    array = np.array(ids, np.int64)
    rows = variable.lookup(array, train=True)
    variable.apply_gradients(array, np.full_like(rows, 2))
    return rows


@pytest.mark.parametrize(
    "filter_option", [es.CounterFilter(3), es.CBFFilter(3, 1000, 1e-6)], ids=repr
)
def test_a_waiting_key_has_a_frequency_but_no_row(
    make_variable: MakeVariable, filter_option: Filter
) -> None:
    variable = make_variable(filter=filter_option)
    for _ in range(2):
        step(variable, [1, 1, 1, 2, 2, 3])
    assert variable.lookup_tier([1, 2, 3, 4]).tolist() == [0, 0, -1, -1]
    assert variable.export()["keys"].tolist() == [1, 2]
    # A sketch keeps no versions.
    waiting_version = 1 if isinstance(filter_option, es.CounterFilter) else -1
    assert variable.get_version([1, 2, 3, 4]).tolist() == [1, 1, waiting_version, -1]


def test_admitted_keys_beyond_the_first_tier_train_as_in_dram(
    make_variable: MakeVariable, tiered_stack: Stack, storage_of: StorageOf
) -> None:
    ids = list(range(20))
    variable = make_variable(
        storage=storage_of(tiered_stack, upper_bytes=128), filter=es.CounterFilter(2)
    )
    for _ in range(4):
        step(variable, ids)
    variable.drain()
    # The first of four updates only counts; then Adagrad on accumulators 4.1, 8.1, 12.1.
    expected = 1 - sum(0.1 * 2 / np.sqrt(0.1 + 4 * i) for i in (1, 2, 3))
    np.testing.assert_allclose(variable.lookup(ids), expected, rtol=1e-6)
    assert variable.get_frequency(ids).tolist() == [4] * 20


NEW_KEYS = 20_000
# Sized for a tenth of the keys that come, so that most keys share all their counters with others.
OVERFULL = es.CBFFilter(2, NEW_KEYS // 10, 0.01, np.uint8)
COUNTED = np.arange(-1000, 4 * NEW_KEYS, 3)


@pytest.fixture(params=[1, 4], ids="{}-threads".format)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yields the number of threads that share a large batch."""
    before = es.get_num_threads()
    es.set_num_threads(request.param)
    yield request.param
    es.set_num_threads(before)


def batches() -> list[NDArray[np.int64]]:
    """Returns new keys, each once; then some of them and new ones, with duplicates; a small batch
    too."""
    rng = np.random.default_rng(5)
    fresh = rng.permutation(NEW_KEYS)
    return [
        fresh,
        rng.integers(0, 2 * NEW_KEYS, NEW_KEYS // 2),
        rng.integers(0, 3 * NEW_KEYS, 300),
        rng.integers(2 * NEW_KEYS, 4 * NEW_KEYS, NEW_KEYS // 4),
    ]


def train_filtered(
    variable: es.EmbeddingVariable, ids_of_batches: Sequence[NDArray[np.int64]]
) -> None:
    for n, ids in enumerate(ids_of_batches):
        gradients = np.repeat(1 + ids[:, None] % 7, 3, 1).astype(np.float32)
        variable.apply_gradients(ids, gradients, global_step=n)


@functools.cache
def admitted_by_one_thread_in_dram(filter_option: Filter) -> es.EmbeddingVariable:
    """Returns the variable that others are compared with. It is open until the process ends."""
    es.set_num_threads(1)
    wanted = variable_with_options(
        "wanted",
        3,
        initializer=es.initializers.Ones(),
        optimizer=es.optimizers.Adagrad(0.1),
        filter=filter_option,
    )
    train_filtered(wanted, batches())
    return wanted


def assert_same_rows_and_counts(got: es.EmbeddingVariable, wanted: es.EmbeddingVariable) -> None:
    assert_same(got.export(), wanted.export())
    np.testing.assert_array_equal(got.get_frequency(COUNTED), wanted.get_frequency(COUNTED))
    assert got.stats()["waiting_keys"] == wanted.stats()["waiting_keys"]


def make_room_in_index(variable: es.EmbeddingVariable) -> None:
    """Makes room for many more rows than training brings, as if other rows had been removed."""
    ids = np.arange(10**6, 10**6 + 2 * NEW_KEYS)
    variable.put(ids, np.ones((ids.size, 3), np.float32))
    variable.remove(ids)


@pytest.mark.usefixtures("threads")
def test_keys_of_a_batch_do_not_admit_each_other(
    make_variable: MakeVariable, stack: Stack, storage_of: StorageOf
) -> None:
    """No key occurs twice, and the sketch is empty when the batch begins."""
    variable = make_variable(storage=storage_of(stack, 16 * MIB), filter=OVERFULL)
    make_room_in_index(variable)
    train_filtered(variable, batches()[:1])
    assert variable.total_count()[0] == 0


@pytest.mark.parametrize("index_has_room", [True, False], ids=["room", "no_room"])
@pytest.mark.parametrize("filter_option", [OVERFULL, es.CounterFilter(2)], ids=repr)
def test_the_same_keys_are_admitted_on_every_storage_type(
    make_variable: MakeVariable,
    stack: Stack,
    storage_of: StorageOf,
    threads: int,
    filter_option: Filter,
    index_has_room: bool,
) -> None:
    """Neither the number of threads nor the growth of the index makes a difference."""
    wanted = admitted_by_one_thread_in_dram(filter_option)
    es.set_num_threads(threads)
    got = make_variable(storage=storage_of(stack, 16 * MIB), filter=filter_option)
    if index_has_room:
        make_room_in_index(got)
    train_filtered(got, batches())
    assert 1000 < wanted.total_count()[0] < 3 * NEW_KEYS
    assert_same_rows_and_counts(got, wanted)


def test_the_order_of_a_batch_does_not_matter_to_a_filter(make_variable: MakeVariable) -> None:
    one, other = make_variable(filter=OVERFULL), make_variable(filter=OVERFULL)
    train_filtered(one, batches())
    train_filtered(other, [ids[::-1].copy() for ids in batches()])
    assert_same_rows_and_counts(other, one)
