"""What a variable promises, whatever its storage type."""

from __future__ import annotations

import copy
import ctypes
import pickle

import numpy as np
import pytest
from engine_storage import MakeVariable, StorageOf
from exports import assert_same

import embstore as es
from embstore.errors import ClosedError, InvalidArgumentError, StoreFullError, UnsupportedError

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


def test_lookups_insert_nothing(var: es.EmbeddingVariable) -> None:
    for train in (False, True):
        var.lookup(np.arange(6), train=train)
    assert var.total_count() == (0, 3)
    assert var.export()["keys"].size == 0
    assert var.lookup_tier([0]) == [-1]


def test_six_different_ids_are_six_rows(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([0, 1, 2, 5, 6, 7], twos(6))
    assert var.total_count() == (6, 3)
    assert (var.lookup_tier([0, 7, 8]) >= 0).tolist() == [True, True, False]


def test_frequency_counts_every_occurrence_at_apply(var: es.EmbeddingVariable) -> None:
    for _ in range(2):
        var.lookup([1, 1, 1, 2, 2, 3], train=True)
        var.apply_gradients([1, 1, 1, 2, 2, 3], twos(6))
    assert var.get_frequency([1, 2, 3, 4]).tolist() == [6, 4, 2, 0]


def test_version_is_the_step_of_the_last_apply(var: es.EmbeddingVariable) -> None:
    for _ in range(2):
        var.apply_gradients([5], TWOS)
    var.apply_gradients([6], TWOS)
    assert var.get_version([5, 6, 7]).tolist() == [1, 2, -1]
    var.apply_gradients([5], TWOS, global_step=1000)
    assert var.get_version([5]) == [1000]


def test_a_given_step_doesnt_move_the_count_of_applies(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1], TWOS, global_step=1000)
    var.apply_gradients([2], TWOS)
    assert var.get_version([1, 2]).tolist() == [1000, 1]


@pytest.mark.parametrize(
    "optimizer", [es.optimizers.SGD(0.1), es.optimizers.Ftrl(0.1), es.optimizers.Adam()]
)
def test_version_is_kept_for_every_optimizer(
    make_variable: MakeVariable, optimizer: es.optimizers.Optimizer
) -> None:
    var = make_variable(optimizer=optimizer)
    var.apply_gradients([5], TWOS, global_step=7)
    assert var.get_version([5]) == [7]


def test_gradients_of_one_key_are_summed_before_the_step(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1, 2, 1], twos(3))
    var.apply_gradients([3], 2 * TWOS)
    np.testing.assert_array_equal(var.lookup([1]), var.lookup([3]))


def test_an_empty_batch_is_an_apply_all_the_same(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([], np.empty((0, 3), np.float32))
    var.apply_gradients([1], TWOS)
    assert var.get_version([1]) == [1]


def test_every_int64_is_a_legal_key(var: es.EmbeddingVariable) -> None:
    info = np.iinfo(np.int64)
    keys = np.array([0, -1, 1, info.min, info.min + 1, info.max, info.max - 1], np.int64)
    var.apply_gradients(keys, np.arange(21, dtype=np.float32).reshape(7, 3))
    assert (var.lookup_tier(keys) >= 0).all()
    exported = var.export()
    assert exported["keys"].tolist() == sorted(keys.tolist())
    np.testing.assert_array_equal(exported["values"], var.lookup(exported["keys"]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5000, 9999])
def test_a_gradient_that_isnt_finite_is_named_and_trains_nothing(
    var: es.EmbeddingVariable, bad: float, at: int
) -> None:
    ids = np.arange(10_000) + 7
    grads = np.full((10_000, 3), np.finfo(np.float32).max, np.float32)  # of these, sums overflow
    grads[at, 2] = bad
    told = rf"that of ids\[{at}\], key {at + 7}, has {bad} in column 2"
    with pytest.raises(InvalidArgumentError, match=told):
        var.apply_gradients(ids, grads)
    assert var.total_count()[0] == 0


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4", ">i8"])
def test_ids_of_integers_that_int64_has_are_taken(var: es.EmbeddingVariable, dtype: str) -> None:
    ids = np.array([[100, 3], [100, 4]], dtype)
    var.apply_gradients(ids, np.ones((2, 2, 3), np.float32))
    assert var.export()["keys"].tolist() == [3, 4, 100]
    assert var.get_frequency(ids).tolist() == [[2, 1], [2, 1]]
    assert var.lookup(ids).shape == (2, 2, 3)


def test_its_length_is_its_rows_and_an_empty_one_is_no_less_there(
    var: es.EmbeddingVariable,
) -> None:
    assert len(var) == 0
    assert var
    var.apply_gradients([1, 1, 2], np.ones((3, 3), np.float32))
    assert len(var) == 2


def test_unknown_keys_read_their_row_of_the_default_table(
    make_variable: MakeVariable, storage_type: es.StorageType, storage_of: StorageOf
) -> None:
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    var = make_variable(
        storage=storage_of(storage_type),
        init=es.InitializerOption(es.initializers.Constant(table), default_value_dim=8),
    )
    ids = [0, 1, 2, 5, 6, 7, 8, 9, 10]
    np.testing.assert_array_equal(var.lookup(ids), table[[0, 1, 2, 5, 6, 7, 0, 1, 2]])
    np.testing.assert_array_equal(var.lookup([-1, -8, -9]), table[[7, 0, 7]])
    var.apply_gradients(ids, np.zeros((9, 3), np.float32))
    np.testing.assert_array_equal(var.lookup(ids), table[[0, 1, 2, 5, 6, 7, 0, 1, 2]])


def test_a_lookup_writes_into_a_given_array(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1], TWOS)
    out = np.zeros((2, 3), np.float32)
    assert var.lookup([1, 2], out=out) is out
    np.testing.assert_array_equal(out, var.lookup([1, 2]))


def test_an_export_is_a_copy(var: es.EmbeddingVariable) -> None:
    var.apply_gradients([1], TWOS)
    var.export()["values"][:] = 0
    assert (var.lookup([1]) != 0).all()


def test_a_full_store_says_so_and_changes_nothing(
    make_variable: MakeVariable, storage_type: es.StorageType, storage_of: StorageOf
) -> None:
    rows_of_32_bytes = 4
    var = make_variable(storage=storage_of(storage_type, 32 * rows_of_32_bytes))
    var.apply_gradients([1, 2, 3], twos(3))
    before = var.export()
    with pytest.raises(StoreFullError, match="storage_size"):
        var.apply_gradients([1, 4, 5], twos(3))
    assert_same(var.export(), before)
    var.apply_gradients([1, 4], twos(2))
    assert var.total_count() == (4, 3)
    var.apply_gradients([1, 2, 3, 4] * 5, twos(20))
    assert var.total_count() == (4, 3)


def test_stats_tell_hits_from_misses_and_what_rows_take(var: es.EmbeddingVariable) -> None:
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
