"""Filters: a key that was seen too seldom reads a constant, is not trained, and has no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import embstore as es

Filter = es.CounterFilter | es.CBFFilter
Make = Callable[..., es.EmbeddingVariable]

STORAGE_TYPES = (es.StorageType.DRAM, es.StorageType.DRAM_LEVELDB, es.StorageType.DRAM_SSDHASH)
COUNTER_TYPES = (np.uint8, np.uint16, np.uint32, np.uint64)
FILTERS_AT_3: tuple[Filter, ...] = (
    es.CounterFilter(3),
    *(es.CBFFilter(3, 5, 0.01, counter_type) for counter_type in COUNTER_TYPES),
)


@pytest.fixture(params=STORAGE_TYPES, ids=lambda storage_type: storage_type.name)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a filtered variable whose first tier has room for four rows."""
    with ExitStack() as stack:

        def make(
            filter_option: Filter | None, initializer: es.initializers.Initializer | None = None
        ) -> es.EmbeddingVariable:
            storage_type: es.StorageType = request.param
            storage = (
                es.StorageOption()
                if storage_type is es.StorageType.DRAM
                else es.StorageOption(storage_type, storage_path=tmp_path, storage_size=[128])
            )
            return stack.enter_context(
                es.get_embedding_variable(
                    "var",
                    3,
                    initializer=initializer or es.initializers.Ones(),
                    optimizer=es.optimizers.Adagrad(0.1),
                    ev_option=es.EmbeddingVariableOption(
                        storage_option=storage, filter_option=filter_option
                    ),
                )
            )

        yield make


def step(variable: es.EmbeddingVariable, ids: Sequence[int]) -> NDArray[np.float32]:
    """A training step with a gradient of 2 an occurrence; gives what was read before."""
    array = np.array(ids, np.int64)
    rows = variable.lookup(array, train=True)
    variable.apply_gradients(array, np.full_like(rows, 2))
    return rows


@pytest.mark.parametrize("filter_option", FILTERS_AT_3, ids=repr)
def test_a_key_trains_from_the_update_that_reaches_the_threshold(
    make: Make, filter_option: Filter
) -> None:
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    variable = make(filter_option, es.initializers.Constant(table[3]))
    for _ in range(3):
        assert (step(variable, [3]) == 0).all()
    trained = step(variable, [3])[0]
    # Adagrad's first step with a gradient of 2 on an accumulator of 0.1.
    np.testing.assert_allclose(trained, table[3] - 0.1 * 2 / np.sqrt(4.1), rtol=1e-6)


def test_frequencies_count_occurrences_before_admission_too(make: Make) -> None:
    variable = make(None)
    for _ in range(2):
        step(variable, [1, 1, 1, 2, 2, 3])
    assert variable.get_frequency([1, 2, 3]).tolist() == [6, 4, 2]


@pytest.mark.parametrize(
    "filter_option", [es.CounterFilter(3), es.CBFFilter(3, 1000, 1e-6)], ids=repr
)
def test_a_waiting_key_has_a_frequency_but_no_row(make: Make, filter_option: Filter) -> None:
    variable = make(filter_option)
    for _ in range(2):
        step(variable, [1, 1, 1, 2, 2, 3])
    variable.drain()
    assert variable.get_frequency([1, 2, 3, 4]).tolist() == [6, 4, 2, 0]
    assert variable.lookup_tier([1, 2, 3, 4]).tolist() == [0, 0, -1, -1]
    assert variable.export()["keys"].tolist() == [1, 2]
    assert variable.total_count() == (2, 3)
    assert variable.stats()["waiting_keys"] == 1
    # A sketch keeps no versions.
    waiting_version = 1 if isinstance(filter_option, es.CounterFilter) else -1
    assert variable.get_version([1, 2, 3, 4]).tolist() == [1, 1, waiting_version, -1]


def test_a_filter_of_zero_admits_at_once(make: Make) -> None:
    variable = make(es.CounterFilter(0))
    assert (step(variable, [7]) == 1).all()
    assert variable.total_count() == (1, 3)


def test_keys_admitted_beyond_the_first_tier_train_as_without_one(make: Make) -> None:
    filtered, ids = make(es.CounterFilter(2)), list(range(20))
    for _ in range(4):
        step(filtered, ids)
    filtered.drain()
    # The first of four updates only counts; then Adagrad on accumulators 4.1, 8.1, 12.1.
    expected = 1 - sum(0.1 * 2 / np.sqrt(0.1 + 4 * i) for i in (1, 2, 3))
    np.testing.assert_allclose(filtered.lookup(ids), expected, rtol=1e-6)
    assert filtered.get_frequency(ids).tolist() == [4] * 20
