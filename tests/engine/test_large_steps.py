"""Look-ups and steps on a GPU that miss so many rows that several threads read and update them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_table import make_durable_table
from engine_storage import GPU, MIB, MakeVariable, Stack, row_bytes
from exports import assert_same
from numpy.typing import NDArray

import embstore as es

DIM = 4
ADAGRAD = es.optimizers.Adagrad(0.1)
ROW_BYTES = row_bytes(DIM, ADAGRAD)
KEYS = 20_000
IDS = 12_000  # in a batch; most are missing
STEPS = 4


def batch(step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns a batch many of whose ids occur again, some very often."""
    random = np.random.default_rng(step)
    ids = np.minimum(random.integers(0, KEYS, IDS), random.integers(0, KEYS, IDS))
    ids[::7] = step
    return ids, random.standard_normal((IDS, DIM), np.float32)


def train_on_the_gpu(var: es.EmbeddingVariable, plain: es.EmbeddingVariable, step: int) -> None:
    """Looks a batch up and trains it in both variables, which must give the same rows."""
    ids, grads = batch(step)
    on_gpu = es.DeviceArray(ids, GPU)
    rows = var.lookup(on_gpu, train=True).numpy()
    np.testing.assert_array_equal(rows, plain.lookup(ids, train=True))
    var.apply_gradients(on_gpu, es.DeviceArray(grads, GPU))
    plain.apply_gradients(ids, grads)


@pytest.mark.parametrize("filter_freq", [0, 3])
@pytest.mark.parametrize(
    "kind",
    [
        es.StorageType.HBM_DRAM,
        es.StorageType.HBM_DRAM_PMEM,
        es.StorageType.HBM_DRAM_SSDHASH,
    ],
    ids=lambda kind: kind.name,
)
def test_large_steps_give_the_bits_of_dram(
    make_variable: MakeVariable, tmp_path: Path, kind: es.StorageType, filter_freq: int
) -> None:
    stack = Stack(kind)
    sizes = [300 * ROW_BYTES, *[2 * MIB] * (stack.tiers - 1)]
    filter = es.CounterFilter(filter_freq) if filter_freq else None
    options: dict[str, Any] = {"dim": DIM, "optimizer": ADAGRAD, "filter": filter}
    var = make_variable(name="hbm", storage=stack.option(tmp_path, sizes), **options)
    plain = make_variable(name="plain", **options)
    for step in range(STEPS):
        train_on_the_gpu(var, plain, step)
        if step == STEPS // 2:
            var.drain()
            served = es.DeviceArray(batch(step)[0], GPU)
            np.testing.assert_array_equal(
                var.lookup(served).numpy(), plain.lookup(batch(step)[0], train=True)
            )
    assert_same(var.export(), plain.export())


def test_large_steps_leave_a_checkpoint_in_a_pool_as_it_is(tmp_path: Path) -> None:
    def opened() -> es.EmbeddingVariable:
        return make_durable_table(
            tmp_path, storage_type=es.StorageType.HBM_DRAM_PMEM, pool_bytes=32 << 20
        )

    plain = make_durable_table(tmp_path / "plain", pool_bytes=32 << 20)
    with opened() as var:
        for step in range(2):
            train_on_the_gpu(var, plain, step)
        es.persist([var], tmp_path / "checkpoints")
        expected = plain.export()
        train_on_the_gpu(var, plain, 2)
        assert_same(var.export(), plain.export())
    plain.close()
    with opened() as var:
        es.restore_persisted([var], tmp_path / "checkpoints")
        assert_same(var.export(), expected)


def test_a_large_step_without_room_is_refused_and_says_how_many_rows_are_new(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    sizes = [300 * ROW_BYTES, 5000 * ROW_BYTES]
    storage = Stack(es.StorageType.HBM_DRAM).option(tmp_path, sizes)
    var = make_variable(dim=DIM, optimizer=ADAGRAD, storage=storage)
    known = np.arange(2000)
    grads = np.ones((9000, DIM), np.float32)
    var.apply_gradients(es.DeviceArray(known, GPU), es.DeviceArray(grads[:2000], GPU))
    before = var.export()
    var.apply_gradients(es.DeviceArray(np.arange(9000), GPU), es.DeviceArray(grads, GPU))
    with pytest.raises(es.errors.StoreFullError, match="brings 7000 new rows"):
        var.synchronize()
    assert_same(var.export(), before)
    some = np.arange(5000)
    var.apply_gradients(es.DeviceArray(some, GPU), es.DeviceArray(grads[:5000], GPU))
    var.synchronize()
    assert var.get_frequency([0, 1999, 2000]).tolist() == [2, 2, 1]
