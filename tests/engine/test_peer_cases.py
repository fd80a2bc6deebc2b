"""The expectations of DeepRec's own tests, as black-box tests.

Unless a case says otherwise: initial rows of ones, dim 3, loss = sum of 2 * row (so a gradient of 2
an occurrence), Adagrad at 0.1 with an initial accumulator of 0.1. A step is a training look-up and
then an apply. Rows have come to rest before their tiers are read. The last case, 16, is in
test_ssdhash_reads.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from engine_storage import MakeVariable, Stack, StorageOf
from numpy.typing import NDArray

import embstore as es

F64 = NDArray[np.float64]

ONE_TO_FIVE_STEPS = [0.9012271, 0.8309542, 0.7734582, 0.7236137, 0.6790038]
ACCUMULATORS = [4.1, 8.1, 12.1, 16.1, 20.1]

FILTERS = [
    es.CounterFilter(3),
    *(es.CBFFilter(3, 5, 0.01, counter) for counter in (np.uint8, np.uint16, np.uint32, np.uint64)),
]


def step(var: es.EmbeddingVariable, ids: Sequence[int]) -> NDArray[np.float32]:
    """Runs a step. Returns the rows that its look-up read."""
    array = np.array(ids, np.int64)
    rows = var.lookup(array, train=True)
    var.apply_gradients(array, np.full_like(rows, 2))
    return rows


def tiers_at_rest(var: es.EmbeddingVariable, ids: Sequence[int]) -> list[int]:
    var.drain()
    tiers: list[int] = var.lookup_tier(np.array(ids, np.int64)).tolist()
    return tiers


def ssd(kind: str, path: Path, size_bytes: int = 1024) -> es.StorageOption:
    return es.StorageOption(es.StorageType[kind], path, [size_bytes])


def test_single_occurrences_go_through_the_known_values(
    make_variable: MakeVariable, stack: Stack, storage_of: StorageOf
) -> None:
    var = make_variable(storage=storage_of(stack))
    for row, accumulator in zip(ONE_TO_FIVE_STEPS, ACCUMULATORS, strict=True):
        step(var, [7])
        np.testing.assert_allclose(var.lookup([7]), [[row] * 3], rtol=2e-7)
        np.testing.assert_allclose(var.export()["accumulator"], [[accumulator] * 3], rtol=1e-6)


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "SSDHASH", "DRAM_LEVELDB", "LEVELDB"])
def test_case_1_and_2_the_least_frequent_row_lies_on_ssd(
    make_variable: MakeVariable, tmp_path: Path, kind: str
) -> None:
    var = make_variable(dim=30, storage=ssd(kind, tmp_path))
    for ids in ([1, 2, 3], [1, 2, 4], [1, 2, 2], [1, 2, 5]):
        step(var, ids)
    assert tiers_at_rest(var, range(1, 7)) == [0, 0, 1, 0, 0, -1]
    rows = var.lookup([1, 2, 3, 4, 5], train=True)
    assert (rows == rows[:, :1]).all()
    np.testing.assert_allclose(
        rows[:, 0], [0.7236137, 0.711745, 0.9012271, 0.9012271, 0.9012271], rtol=1e-6
    )
    step(var, [1, 2, 6])
    step(var, [1, 2, 7])
    assert tiers_at_rest(var, range(1, 8)) == [0, 0, 1, 1, 1, 0, 0]


def test_case_3_rows_that_come_and_go_are_those_of_a_plain_array(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    var = make_variable(dim=30, storage=ssd("DRAM_LEVELDB", tmp_path))
    w, accumulator = np.ones((9, 30), np.float32), np.full((9, 30), 0.1, np.float32)
    for _ in range(60):
        step(var, range(1, 10))
        accumulator += np.float32(4)
        w -= np.float32(0.1) * np.float32(2) / np.sqrt(accumulator)
    np.testing.assert_array_equal(var.lookup(range(1, 10)), w)
    np.testing.assert_allclose(w, -0.4066908, rtol=1e-6)


def test_case_4_light_rows_are_gone_after_a_save_and_start_anew(
    make_variable: MakeVariable, tmp_path: Path, stack: Stack, storage_of: StorageOf
) -> None:
    ids = [0, 0, 0, 1, 1, 2]
    var = make_variable(
        name="var",
        storage=storage_of(stack, 32 * 64, upper_bytes=64),
        optimizer=es.optimizers.Ftrl(
            0.1, l1_regularization_strength=2, l2_regularization_strength=1e-5
        ),
        evict=es.L2WeightEvict(0.9),
    )
    step(var, ids)
    es.save(tmp_path / "save", [var], global_step=1)
    assert var.export()["keys"].tolist() == [0, 1]
    es.restore(tmp_path / "save", [var])
    rows = var.lookup(ids)
    assert (rows == rows[:, :1]).all()
    np.testing.assert_allclose(rows[:, 0], [0.8282884] * 3 + [0.7927219] * 2 + [1.0], rtol=1e-6)


def test_case_5_the_version_is_that_of_the_last_step(make_variable: MakeVariable) -> None:
    var = make_variable(evict=es.GlobalStepEvict(5))
    step(var, [5])
    step(var, [5])
    assert var.get_version([5]) == [1]


@pytest.mark.parametrize("filter_option", [None, es.CounterFilter(3)], ids=repr)
def test_case_6_frequencies_count_occurrences(
    make_variable: MakeVariable,
    stack: Stack,
    storage_of: StorageOf,
    filter_option: es.CounterFilter | None,
) -> None:
    var = make_variable(storage=storage_of(stack), filter=filter_option)
    for _ in range(2):
        step(var, [1, 1, 1, 2, 2, 3])
    assert var.get_frequency([1, 2, 3]).tolist() == [6, 4, 2]
    has_row = [True, True, filter_option is None]
    assert (var.lookup_tier([1, 2, 3]) >= 0).tolist() == has_row


def test_case_7_six_different_ids_are_six_rows(make_variable: MakeVariable) -> None:
    var = make_variable()
    step(var, [0, 1, 2, 5, 6, 7])
    assert var.total_count() == (6, 3)


def test_case_8_lookups_alone_make_no_row(
    make_variable: MakeVariable, stack: Stack, storage_of: StorageOf
) -> None:
    var = make_variable(storage=storage_of(stack))
    for train in (True, False):
        var.lookup([0, 1, 2, 5, 6, 7], train=train)
    var.drain()
    assert var.total_count() == (0, 3)


EIGHT_ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)


def of_eight_rows() -> es.InitializerOption:
    return es.InitializerOption(es.initializers.Constant(EIGHT_ROWS), default_value_dim=8)


def test_case_9_keys_start_as_the_rows_of_the_default_table(make_variable: MakeVariable) -> None:
    var = make_variable(init=of_eight_rows())
    rows = var.lookup([0, 1, 2, 5, 6, 7, 8, 9, 10])
    np.testing.assert_array_equal(rows, EIGHT_ROWS[[0, 1, 2, 5, 6, 7, 0, 1, 2]])


@pytest.mark.parametrize("filter_option", FILTERS[:2], ids=repr)
def test_case_10_the_fourth_read_is_the_first_of_a_row(
    make_variable: MakeVariable, filter_option: es.CounterFilter | es.CBFFilter
) -> None:
    var = make_variable(init=of_eight_rows(), filter=filter_option)
    reads = [step(var, [3])[0] for _ in range(4)]
    assert not np.any(reads[:3])
    np.testing.assert_allclose(reads[3], EIGHT_ROWS[3] - 1 + ONE_TO_FIVE_STEPS[0], rtol=1e-6)


def sgd(w: F64, g: F64) -> F64:
    for _ in range(5):
        w = w - 0.1 * g
    return w


def adagrad(w: F64, g: F64, period: int = 100, decay: float = 1.0) -> F64:
    accumulator = np.full_like(w, 0.1)
    for t in range(5):
        if t and (t + 1) % period == 0:
            accumulator = np.maximum(accumulator * decay, 0.1)
        accumulator = accumulator + g**2
        w = w - 0.1 * g / np.sqrt(accumulator)
    return w


def adagrad_decay(w: F64, g: F64) -> F64:
    return adagrad(w, g, period=2, decay=0.5)


def adam(w: F64, g: F64, weight_decay: float = 0.0) -> F64:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, 6):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        mean, square = m / (1 - 0.9**t), v / (1 - 0.999**t)
        w = w - 0.1 * (mean / (np.sqrt(square) + 1e-8) + weight_decay * w)
    return w


def adam_w(w: F64, g: F64) -> F64:
    return adam(w, g, weight_decay=0.01)


def ftrl(w: F64, g: F64) -> F64:
    accumulator, linear = np.full_like(w, 0.1), np.zeros_like(w)
    for _ in range(5):
        sigma = (np.sqrt(accumulator + g**2) - np.sqrt(accumulator)) / 0.1
        accumulator = accumulator + g**2
        linear = linear + g - sigma * w
        w = -linear / (np.sqrt(accumulator) / 0.1)
    return w


@pytest.mark.parametrize(
    ("optimizer", "formula"),
    [
        (es.optimizers.SGD(0.1), sgd),
        (es.optimizers.Adagrad(0.1), adagrad),
        (es.optimizers.Adam(0.1), adam),
        (es.optimizers.Ftrl(0.1), ftrl),
        (es.optimizers.AdamW(0.01, learning_rate=0.1), adam_w),
        (es.optimizers.AdagradDecay(0.1, 0.1, 2, 0.5), adagrad_decay),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_case_11_five_steps_are_the_formula_on_a_plain_array(
    make_variable: MakeVariable,
    stack: Stack,
    storage_of: StorageOf,
    optimizer: es.optimizers.Optimizer,
    formula: Callable[[F64, F64], F64],
) -> None:
    var = make_variable(storage=storage_of(stack, 4096, upper_bytes=128), optimizer=optimizer)
    for _ in range(5):
        step(var, [0, 1, 2, 5, 6, 7])
        var.drain()
    wanted = formula(np.ones((6, 3)), np.full((6, 3), 2.0))
    np.testing.assert_allclose(var.lookup([0, 1, 2, 5, 6, 7]), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("filter_option", FILTERS[1:], ids=repr)
def test_case_12_counters_of_any_width_admit_at_the_threshold(
    make_variable: MakeVariable, filter_option: es.CBFFilter
) -> None:
    var = make_variable(filter=filter_option)
    reads = [step(var, [1])[0] for _ in range(4)]
    assert not np.any(reads[2])
    assert np.all(reads[3])


def test_case_13_a_save_drops_the_rows_that_weigh_too_little(
    make_variable: MakeVariable, tmp_path: Path, stack: Stack, storage_of: StorageOf
) -> None:
    rows = np.repeat(np.arange(1, 6, dtype=np.float32)[:, None], 3, 1)  # rows of 1 + i
    var = make_variable(
        storage=storage_of(stack, 32 * 64, upper_bytes=64),
        init=es.InitializerOption(es.initializers.Constant(rows), default_value_dim=5),
        evict=es.L2WeightEvict(14),
    )
    var.apply_gradients(np.arange(5), np.zeros((5, 3), np.float32))
    es.save(tmp_path / "save", [var], global_step=1)
    assert var.export()["keys"].tolist() == [3, 4]


def test_case_14_a_save_drops_the_rows_that_were_left_alone_too_long(
    make_variable: MakeVariable, tmp_path: Path, stack: Stack, storage_of: StorageOf
) -> None:
    var = make_variable(
        storage=storage_of(stack, 32 * 64, upper_bytes=64), evict=es.GlobalStepEvict(5)
    )
    for key in range(30):
        step(var, [key])
    es.save(tmp_path / "save", [var], global_step=30)
    assert var.export()["keys"].tolist() == [25, 26, 27, 28, 29]
    assert var.total_count() == (5, 3)


def test_case_15_sixteen_threads_that_insert_the_same_keys_make_one_row_of_each(
    make_variable: MakeVariable, stack: Stack, storage_of: StorageOf
) -> None:
    var = make_variable(storage=storage_of(stack, 32 * 64, upper_bytes=64))
    start = threading.Barrier(16)

    def insert(_: int) -> None:
        start.wait()
        step(var, [1, 2, 3, 4, 5])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(insert, range(16)))
    assert var.total_count() == (5, 3)
