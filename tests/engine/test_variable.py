"""Promises that a variable of any storage type keeps."""

from __future__ import annotations

import copy
import ctypes
import pickle

import numpy as np
import pytest
from engine_storage import MakeVariable, StorageOf

import embstore as es
from embstore.errors import ClosedError, InvalidArgumentError, UnsupportedError

TWOS = np.full((1, 3), 2.0, np.float32)


def twos(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((count, 3), 2.0, np.float32)


@pytest.fixture
def var(
    make_variable: MakeVariable, storage_type: es.StorageType, storage_of: StorageOf
) -> es.EmbeddingVariable:
    return make_variable(storage=storage_of(storage_type))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3), (2, 3, 4)])
def test_rows_have_the_shape_of_the_ids(var: es.EmbeddingVariable, shape: tuple[int, ...]) -> None:
    ids = np.zeros(shape, np.int64)
    rows = var.lookup(ids)
    assert rows.shape == (*shape, 3)
    assert rows.dtype == np.float32
    var.apply_gradients(ids, np.ones((*shape, 3), np.float32))
    assert var.lookup_tier(ids).shape == shape
    assert var.get_frequency(ids).shape == shape
    assert var.get_version(ids).shape == shape


def test_ids_may_lie_anywhere_in_memory(var: es.EmbeddingVariable) -> None:
    var.apply_gradients(np.arange(10), twos(10) * np.arange(10, dtype=np.float32)[:, None])
    strided = np.arange(20).reshape(2, 10)[:, ::3].T
    np.testing.assert_array_equal(var.lookup(strided), var.lookup(strided.copy()))
    var.apply_gradients(np.array([3]), np.asfortranarray(twos(1)))
    assert var.get_frequency([3]) == [2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5000, 9999])
def test_a_gradient_that_isnt_finite_is_named_and_trains_nothing(
    var: es.EmbeddingVariable, bad: float, at: int
) -> None:
    ids = np.arange(10_000) + 7
    grads = np.full((10_000, 3), np.finfo(np.float32).max, np.float32)  # their sums overflow
    grads[at, 2] = bad
    told = rf"that of ids\[{at}\], key {at + 7}, has {bad} in column 2"
    with pytest.raises(InvalidArgumentError, match=told):
        var.apply_gradients(ids, grads)
    assert var.total_count()[0] == 0


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4", ">i8"])
def test_ids_of_other_integer_types_are_taken_if_int64_holds_them(
    var: es.EmbeddingVariable, dtype: str
) -> None:
    ids = np.array([[100, 3], [100, 4]], dtype)
    var.apply_gradients(ids, np.ones((2, 2, 3), np.float32))
    assert var.export()["keys"].tolist() == [3, 4, 100]
    assert var.get_frequency(ids).tolist() == [[2, 1], [2, 1]]
    assert var.lookup(ids).shape == (2, 2, 3)


def test_the_length_of_a_variable_is_its_rows_and_an_empty_one_is_true(
    var: es.EmbeddingVariable,
) -> None:
    assert len(var) == 0
    assert var
    var.apply_gradients([1, 1, 2], np.ones((3, 3), np.float32))
    assert len(var) == 2


def test_a_lookup_writes_into_a_given_array(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1], TWOS)
    out = np.zeros((2, 3), np.float32)
    assert var.lookup([1, 2], out=out) is out
    np.testing.assert_array_equal(out, var.lookup([1, 2]))


def test_an_export_is_a_copy(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1], TWOS)
    var.export()["values"][:] = 0
    assert (var.lookup([1]) != 0).all()


def test_stats_count_hits_and_misses_and_the_bytes_of_rows(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1, 2], twos(2))
    var.lookup([1, 2, 3, 3, 3])
    stats = var.stats()
    assert (stats["hits"], stats["misses"]) == (2, 3)
    assert (stats["promotions"], stats["demotions"], stats["waiting_keys"]) == (0, 0, 0)
    first, *lower = stats["tiers"]
    kinds = [tier.kind.value for tier in var.ev_option.storage_option.tiers()]
    assert [tier["name"] for tier in stats["tiers"]] == kinds
    assert first["rows"] == 2
    assert first["bytes"] == 64
    assert (first["address"] != 0) == (kinds[0] != "HBM")
    assert (first["gpu"] is None) == (kinds[0] != "HBM")
    assert first["mapped_bytes"] >= first["capacity_rows"] * 32
    for tier in lower:
        assert (tier["rows"], tier["bytes"]) == (0, 0)
    for tier in stats["tiers"]:
        assert tier["row_bytes"] == 32  # weights and accumulator, each 12 bytes rounded up to 16
    assert sum(tier["capacity_rows"] for tier in stats["tiers"]) == (1 << 20) // 32


def test_rows_lie_at_the_address_that_stats_give(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1], TWOS)
    var.drain()
    tier = var.stats()["tiers"][0]
    if var.ev_option.storage_option.has_hbm:
        assert tier["address"] == 0  # this process can't read a GPU's memory
        return
    row = (ctypes.c_float * 3).from_address(tier["address"])
    np.testing.assert_array_equal(np.array(row, np.float32), var.lookup([1])[0])


def test_a_variable_knows_what_it_was_made_of(make_variable: MakeVariable) -> None:
    optimizer = es.optimizers.SGD(0.5)
    var = make_variable(name="users", dim=7, optimizer=optimizer)
    assert (var.name, var.dim, var.optimizer, var.partition_num) == ("users", 7, optimizer, 1)
    assert var.ev_option.storage_option.storage_type is es.StorageType.DRAM
    assert repr(var) == "EmbeddingVariable('users', dim=7, storage_type=DRAM)"


def test_a_variable_without_an_optimizer_can_be_read_but_not_trained(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(name="frozen", optimizer=None)
    assert (var.lookup([1]) == 1).all()
    assert list(var.export()) == ["keys", "values", "freqs", "versions"]
    with pytest.raises(InvalidArgumentError, match=r"frozen.*optimizer="):
        var.apply_gradients([1], TWOS)


def test_a_closed_variable_refuses_everything_but_another_close(var: es.EmbeddingVariable) -> None:
    with var:
        var.apply_gradients([1], TWOS)
    var.close()
    for use in (
        lambda: var.lookup([1]),
        lambda: var.apply_gradients([1], TWOS),
        lambda: var.lookup_tier([1]),
        lambda: var.get_frequency([1]),
        lambda: var.get_version([1]),
        var.total_count,
        var.export,
        var.drain,
        var.stats,
    ):
        with pytest.raises(ClosedError, match=var.name):
            use()


def test_a_variable_cant_be_copied_and_says_so(make_variable: MakeVariable) -> None:
    var = make_variable(name="users")
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match=r"users can't be copied.*export\(\)"):
            duplicate(var)


def test_without_an_initializer_rows_start_as_a_truncated_normal(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(initializer=None, dim=16)
    values = var.lookup(np.arange(4096))
    assert abs(float(values.mean())) < 0.001
    assert 0.04 < float(values.std()) < 0.05
    assert np.abs(values).max() < 0.1


def test_the_option_s_initializer_beats_the_argument(make_variable: MakeVariable) -> None:
    var = make_variable(
        initializer=es.initializers.Ones(),
        init=es.InitializerOption(es.initializers.Constant(5.0)),
    )
    assert (var.lookup([1]) == 5).all()
