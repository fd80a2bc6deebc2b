"""Arrays in a GPU's memory: training from them gives the same rows as in DRAM, bit for bit."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_storage import (
    GPU,
    MakeVariable,
    needs_the_emulated_gpu,
    on_device,
)
from exports import assert_same
from numpy.typing import NDArray
from plain_partition import keys_of_each, partitions_of

import embstore as es
from embstore import _core
from embstore.errors import InvalidArgumentError
from embstore.gpu.batches import IdsOnDevice
from embstore.table.shard import LocalShard, SaveRequest

DIM = 3
ROW_BYTES = 32  # weights and an accumulator


def hbm(rows: int = 40, kind: es.StorageType = es.StorageType.HBM_DRAM) -> es.StorageOption:
    return es.StorageOption(kind, storage_size=[rows * ROW_BYTES, 1 << 20][: len(kind.name) // 3])


def ones(ids: NDArray[np.int64]) -> es.DeviceArray:
    return on_device(np.ones((ids.size, DIM)), np.float32)


def trained(make_variable: MakeVariable, rows: int = 80, **options: Any) -> Any:
    var = make_variable(storage=hbm(), **options)
    ids = np.arange(rows)
    var.apply_gradients(ids, np.linspace(-1, 1, rows * DIM, dtype=np.float32).reshape(rows, DIM))
    var.drain()
    return var


# --- Arrays


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0,), (3, 0)])
def test_values_come_back_from_the_device(shape: tuple[int, ...], dtype: type) -> None:
    count = int(np.prod(shape, dtype=int))
    values: NDArray[Any] = np.arange(count, dtype=dtype).reshape(shape)
    array = es.DeviceArray(values, device=GPU)
    assert (array.shape, array.dtype, array.device) == (shape, np.dtype(dtype), GPU)
    np.testing.assert_array_equal(array.numpy(), values)
    array.copy_from(values + dtype(1))
    np.testing.assert_array_equal(array.numpy(), values + dtype(1))


def test_values_of_another_layout_are_copied_as_they_are() -> None:
    values = np.arange(12, dtype=np.int64).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(on_device(values).numpy(), values)


def test_an_array_describes_itself_by_dlpack() -> None:
    array = on_device(np.zeros((4, 6)), np.float32)
    address, *told = _core.described(array)
    assert told == [(4, 6), "f", 32, *array.__dlpack_device__()]
    assert address % 256 == 0
    shared = array.__dlpack__(stream=0, max_version=(1, 0))
    del array
    gc.collect()
    assert _core.described(shared)[0] == address  # sharing the memory keeps it


@needs_the_emulated_gpu
def test_a_stream_that_takes_an_array_comes_after_earlier_work_on_it(
    make_variable: MakeVariable,
) -> None:
    var = trained(make_variable)
    array = on_device([1, 2])
    rows = var.lookup(array).numpy()  # makes a stream beside the default one

    def takes(stream: int | None) -> bool:
        with contextlib.suppress(InvalidArgumentError):
            array.__dlpack__(stream=stream)
            return True
        return False

    assert all(takes(stream) for stream in (None, -1, 0, 1))
    assert any(takes(stream) for stream in range(2, 1000))
    with pytest.raises(InvalidArgumentError, match="the device has no stream"):
        array.__dlpack__(stream=1 << 40)
    np.testing.assert_array_equal(var.lookup(array).numpy(), rows)


def test_other_types_and_values_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must be int64 or float32, got float64"):
        es.DeviceArray(np.zeros(3), device=GPU)
    with pytest.raises(InvalidArgumentError, match="device must be"):
        es.DeviceArray(np.zeros(3, np.float32), device="gpu")
    masked = np.ma.masked_array(np.zeros(3, np.float32), [True, False, False])
    with pytest.raises(InvalidArgumentError, match="values must be a plain array, got a masked"):
        es.DeviceArray(masked, device=GPU)
    with pytest.raises(InvalidArgumentError, match="values must be a plain array, got a masked"):
        es.DeviceArray(np.zeros(3, np.float32), device=GPU).copy_from(masked)
    with pytest.raises(InvalidArgumentError, match="values must be a regular array"):
        es.DeviceArray([[1], [2, 3]], device=GPU)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"float32 of shape \(3,\), got float32 of .*4"):
        on_device(np.zeros(3), np.float32).copy_from(np.zeros(4, np.float32))
    a_list: Any = [1.0, 2.0, 3.0]
    with pytest.raises(InvalidArgumentError, match=r"int64 of shape \(3,\), got float64"):
        on_device(np.zeros(3)).copy_from(a_list)
    wrong: list[tuple[Any, Any, str]] = [
        ((2, -1), np.float32, "shape must be at least 0, got -1"),
        (None, np.float32, "shape must be a tuple of integers, got None"),
        (3, np.float32, "shape must be a tuple of integers, got 3"),
        ((2,), "no type", "dtype must be int64 or float32, got 'no type'"),
        ((2,), "\ud800", "dtype must be int64 or float32"),
        ((2,), np.float64, "must be int64 or float32, got float64"),
    ]
    for shape, dtype, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            es.DeviceArray.empty(shape, dtype, device=GPU)


def test_an_error_to_numpy_says_where_the_array_lies() -> None:
    array = on_device([1, 2])
    for use in (np.asarray, np.sum, lambda lies: np.testing.assert_array_equal(lies, [1, 2])):
        with pytest.raises(TypeError, match=rf"in the memory of {GPU}; numpy\(\) gives a copy"):
            use(array)


# --- Look-ups


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (0,), (300,)])
def test_rows_on_the_device_are_those_of_the_host(
    make_variable: MakeVariable, shape: tuple[int, ...], partitions: int, train: bool
) -> None:
    var = trained(make_variable, partition_num=partitions)
    ids = np.random.default_rng(1).integers(0, 100, shape)
    expected = var.lookup(ids, train=True)
    rows = var.lookup(on_device(ids), train=train)
    assert isinstance(rows, es.DeviceArray)
    assert rows.shape == (*shape, DIM)
    np.testing.assert_array_equal(rows.numpy(), expected)
    out = es.DeviceArray.empty((*shape, DIM), np.float32, GPU)
    assert var.lookup(on_device(ids), train=train, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected)


def test_each_id_is_a_hit_or_a_miss_once(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    ids = np.concatenate([np.arange(80), np.arange(80), [1000]])
    var.lookup(on_device(ids), train=True)
    stats = var.stats()  # once the look-up is done
    assert (stats["hits"], stats["misses"]) == (80, 81)
    assert stats["without_row"] == 1


@pytest.mark.parametrize("train", [True, False])
def test_a_batch_that_misses_many_rows_gets_them_all_and_counts_each_once(
    make_variable: MakeVariable, train: bool
) -> None:
    rows = 12_000  # so many that several threads read them
    var = trained(make_variable, rows)
    ids = np.random.default_rng(1).permutation(
        np.concatenate([np.arange(rows + 100), np.arange(0, rows, 3)])
    )
    expected = var.lookup(ids, train=True)
    before = var.stats()
    np.testing.assert_array_equal(var.lookup(on_device(ids), train=train).numpy(), expected)
    after = var.stats()
    lookups = {name: after[name] - before[name] for name in ("hits", "misses", "without_row")}
    assert lookups["hits"] + lookups["misses"] == ids.size
    assert lookups["without_row"] == 100
    var.drain()
    assert var.stats()["forgotten_accesses"] == 0


def test_the_arrays_of_a_look_up_may_go_before_it_is_done(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    for _ in range(20):
        var.lookup(on_device(np.arange(100)), train=True)
    var.synchronize()


def test_the_arrays_of_an_apply_may_go_before_it_is_done(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    for _ in range(20):
        var.apply_gradients(on_device(np.arange(100)), on_device(np.ones((100, DIM)), np.float32))
    var.synchronize()
    assert var.get_frequency([0, 99]).tolist() == [21, 20]


def test_the_error_of_an_apply_without_room_is_raised_by_the_next_call(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(storage=hbm(kind=es.StorageType.HBM))
    ids = np.arange(41)
    grads = np.ones((41, DIM), np.float32)
    var.apply_gradients(on_device(ids), on_device(grads, np.float32))
    with pytest.raises(es.errors.StoreFullError, match="brings 41 new rows"):
        var.synchronize()
    assert var.total_count() == (0, DIM)
    var.apply_gradients(on_device(ids[:40]), on_device(grads[:40], np.float32), global_step=7)
    assert var.get_version(ids).tolist() == [7] * 40 + [-1]


@pytest.mark.parametrize("partition_num", [1, 3])
def test_closing_a_variable_raises_the_error_of_its_last_apply(
    make_variable: MakeVariable, partition_num: int
) -> None:
    ids = np.arange(5)
    grads = np.full((5, DIM), np.nan)
    var = make_variable(storage=hbm(), partition_num=partition_num)
    with pytest.raises(InvalidArgumentError, match="finite"), var:
        var.apply_gradients(on_device(ids), on_device(grads, np.float32))
    with pytest.raises(es.errors.ClosedError):
        var.lookup(ids)
    var.close()


def test_a_restore_drops_the_error_of_an_apply_before_it(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    var = trained(make_variable)
    es.save(tmp_path / "save", [var], 1)
    ids = np.arange(5)
    expected = var.lookup(ids)
    var.apply_gradients(on_device(ids), on_device(np.full((5, DIM), np.nan), np.float32))
    es.restore(tmp_path / "save", [var])
    np.testing.assert_array_equal(var.lookup(ids), expected)


# --- Several partitions


def with_partitions(make_variable: MakeVariable, **options: Any) -> es.EmbeddingVariable:
    """Makes a variable of three partitions with 10 rows each, all in HBM."""
    return make_variable(storage=hbm(10, es.StorageType.HBM), partition_num=3, **options)


@pytest.mark.parametrize("full", [0, 1, 2])
def test_one_full_partition_refuses_the_batch_for_all(
    make_variable: MakeVariable, full: int
) -> None:
    var = with_partitions(make_variable, name="parts")
    keys = keys_of_each(3, 11)
    where = partitions_of(keys, 3)
    some = np.concatenate([keys[where == number][:6] for number in range(3)])
    var.apply_gradients(on_device(some), ones(some))
    var.drain()
    before = var.export()
    too_many = np.r_[some, keys[where == full]]
    var.apply_gradients(on_device(too_many), ones(too_many))
    with pytest.raises(es.errors.StoreFullError, match=r"brings 5 new rows, .* room for 4 more"):
        var.synchronize()
    var.synchronize()  # the error is raised once
    assert_same(var.export(), before)
    fits = np.r_[some, keys[where == full][:10]]
    var.apply_gradients(on_device(fits), ones(fits))
    var.synchronize()
    assert (
        var.get_version(fits).tolist() == [2] * fits.size
    )  # a batch that fails counts as an apply


@pytest.mark.parametrize("saved", [0, 1, 2])
def test_a_batch_passes_through_the_host_while_one_partition_is_saved(
    make_variable: MakeVariable, tmp_path: Path, saved: int
) -> None:
    var = make_variable(storage=hbm(), partition_num=3)
    plain = make_variable()
    random = np.random.default_rng(saved)

    def train() -> None:
        ids = random.integers(0, 200, 60)
        np.testing.assert_array_equal(
            var.lookup(on_device(ids), train=True).numpy(), plain.lookup(ids, train=True)
        )
        grads = random.standard_normal((60, DIM)).astype(np.float32)
        var.apply_gradients(on_device(ids), on_device(grads, np.float32))
        plain.apply_gradients(ids, grads)

    train()
    shard = var._shards[saved]
    assert isinstance(shard, LocalShard)
    request = SaveRequest(str(tmp_path / "rows"), bytes(16), saved, 3, False, None, None)
    with shard.prepare_save(request) as save:
        train()
        save.begin(False)
        train()
        save.write(False)
    train()
    assert_same(var.export(), plain.export())


def test_partitions_count_each_access_once(make_variable: MakeVariable) -> None:
    var = with_partitions(make_variable)
    keys = keys_of_each(3, 8)
    var.apply_gradients(on_device(keys), ones(keys))
    var.drain()
    ids = np.r_[keys, keys, 1000, 1001]
    for train in (True, False):
        var.lookup(on_device(ids), train=train)
    var.apply_gradients(on_device(ids[: 2 * keys.size]), ones(ids[: 2 * keys.size]))
    stats = var.stats()
    assert (stats["hits"], stats["misses"]) == (2 * 48, 2 * 2)
    assert stats["without_row"] == 2 * 2
    for tier in stats["tiers"]:
        updated = [
            count["accesses"] for count in tier["accesses"] if count["access"] is es.Access.UPDATE
        ]
        assert sum(updated) == 8
    assert var.get_frequency(keys).tolist() == [3] * keys.size


# --- Saves


def test_a_variable_says_which_gpu_takes_its_batches(make_variable: MakeVariable) -> None:
    assert trained(make_variable, name="one").gpu == GPU
    assert trained(make_variable, name="parts", partition_num=3).gpu == GPU
    assert make_variable(name="dram").gpu is None


def test_steps_of_tensors_are_put_on_pytorchs_current_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")

    class OnGpu(torch.Tensor):  # type: ignore[misc, name-defined]
        device = "cuda:3"

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 3

        def __dlpack__(self, **_: Any) -> Any:
            return _core.to_dlpack(self, self.data_ptr(), list(self.shape), False, 2, 3)

    streams = {"cuda:3": SimpleNamespace(cuda_stream=77)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    ids = IdsOnDevice.of(torch.arange(6).view(2, 3).as_subclass(OnGpu))
    assert (ids.device, ids.stream, ids.shape) == ("cuda:3", 77, (2, 3))
    column = IdsOnDevice.of(torch.arange(6).view(2, 3).as_subclass(OnGpu)[:, 1])
    copied: Any = column.array
    assert (column.shape, copied.tolist(), copied.is_contiguous()) == ((2,), [1, 4], True)


# --- Arguments that are refused


class Elsewhere:
    """Ids that claim to be on another GPU than they are."""

    def __init__(self, ids: es.DeviceArray, number: int) -> None:
        self.ids = ids
        self.number = number

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, **_: Any) -> Any:
        address, shape, *_rest = _core.described(self.ids)
        return _core.to_dlpack(self.ids, address, list(shape), False, 2, self.number)


def test_an_error_about_ids_on_another_gpu_names_both_gpus(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    ids = Elsewhere(on_device([1, 2]), number=3)
    with pytest.raises(InvalidArgumentError, match=rf"ids are on cuda:3, and .* rows on {GPU}"):
        var.lookup(ids)


def test_a_variable_without_hbm_refuses_ids_on_a_gpu(make_variable: MakeVariable) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"ids are on {GPU}, but .* no tier of HBM"):
        make_variable().lookup(on_device([1]))


def test_calls_that_need_ids_on_the_host_say_how_to_copy_them(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    ids = on_device([1, 2])
    for call in (
        var.lookup_tier,
        var.get_frequency,
        var.get_version,
        var.remove,
        lambda ids: var.put(ids, np.zeros((2, DIM), np.float32)),
    ):
        with pytest.raises(InvalidArgumentError, match=r"ids must be .* numpy\(\) gives a copy"):
            call(ids)


def test_arrays_that_do_not_fit_are_refused(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    with pytest.raises(InvalidArgumentError, match="ids must be int64, got float32"):
        var.lookup(on_device([1.0], np.float32))
    ids = on_device([1, 2])
    with pytest.raises(InvalidArgumentError, match=f"out must be on {GPU}, as ids are"):
        var.lookup(ids, out=np.zeros((2, DIM), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"out must be .* shape \(2, 3\) .* \(3, 3\)"):
        var.lookup(ids, out=on_device(np.zeros((3, 3)), np.float32))
    with pytest.raises(InvalidArgumentError, match="out must be float32, got int64"):
        var.lookup(ids, out=on_device(np.zeros((2, 3))))
    with pytest.raises(InvalidArgumentError, match=r"grads must be .* shape \(2, 3\) .* \(3, 3\)"):
        var.apply_gradients(ids, on_device(np.zeros((3, 3)), np.float32))
    with pytest.raises(InvalidArgumentError, match="grads must be float32, got int64"):
        var.apply_gradients(ids, on_device(np.zeros((2, 3))))
    with pytest.raises(InvalidArgumentError, match="grads must have the shape"):
        var.apply_gradients(ids, np.zeros((3, 3), np.float32))
    with pytest.raises(InvalidArgumentError, match="grads must have the shape"):
        var.apply_gradients([1, 2], on_device(np.zeros((3, 3)), np.float32))


def test_a_closed_variable_refuses_ids_on_a_gpu(make_variable: MakeVariable) -> None:
    var = trained(make_variable)
    rows = var.lookup(on_device([1]), train=True)
    expected = var.lookup([1], train=True)
    var.close()
    np.testing.assert_array_equal(rows.numpy(), expected)
    with pytest.raises(es.errors.ClosedError):
        var.lookup(on_device([1]), train=True)
