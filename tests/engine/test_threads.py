"""Every method may be called from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_storage import MakeVariable, StorageOf
from plain_partition import partitions_of

import embstore as es
from embstore.errors import ClosedError, StoreFullError

pytestmark = pytest.mark.timeout(60)  # a lock that is never released hangs


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0) .. work(count - 1), started together; the first error is raised."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(run, number) for number in range(count)]:
            done.result()


@pytest.mark.parametrize("partition_num", [1, 2])
def test_no_update_is_lost(
    make_variable: MakeVariable,
    storage_type: es.StorageType,
    storage_of: StorageOf,
    partition_num: int,
) -> None:
    """All threads insert the same keys at once, and rows of all tiers but the last come and go.

    Steps of 1 on small integers are exact, so their order doesn't show.
    """
    var = make_variable(
        storage=storage_of(storage_type, upper_bytes=64 * 16),
        partition_num=partition_num,
        optimizer=es.optimizers.SGD(1.0),
        initializer=es.initializers.Zeros(),
    )
    ids = np.arange(1000)

    def work(number: int) -> None:
        order = np.random.RandomState(number).permutation(ids)
        for _ in range(20):
            var.apply_gradients(order, np.full((1000, 3), -1, np.float32))

    in_threads(4, work)
    assert (var.lookup(ids) == 80).all()
    assert (var.get_frequency(ids) == 80).all()
    assert 76 <= var.get_version(ids).max() <= 79  # any thread's last batch may be a row's last


def test_a_reader_never_sees_half_an_update(
    make_variable: MakeVariable, storage_type: es.StorageType, storage_of: StorageOf
) -> None:
    dim = 64
    var = make_variable(
        dim=dim,
        storage=storage_of(storage_type),
        optimizer=es.optimizers.SGD(1.0),
        initializer=es.initializers.Zeros(),
    )
    ids = np.arange(200)
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for _ in range(300):
                var.apply_gradients(ids, np.full((200, dim), -1, np.float32))
            done.set()
            return
        while not done.is_set():
            rows = var.lookup(ids)
            assert (rows == rows[:, :1]).all()
            assert var.export()["keys"].size in (0, 200)

    in_threads(3, work)
    assert (var.lookup(ids) == 300).all()


def test_rows_appear_while_others_read_and_the_index_grows(make_variable: MakeVariable) -> None:
    var = make_variable(
        optimizer=es.optimizers.SGD(1.0), initializer=es.initializers.Zeros(), dim=4
    )
    chunk, chunks = 2000, 20
    written = 0

    def work(number: int) -> None:
        nonlocal written
        if number == 0:
            for i in range(chunks):
                ids = np.arange(i * chunk, (i + 1) * chunk)
                var.apply_gradients(ids, -np.repeat(ids[:, None] + 1.0, 4, 1).astype(np.float32))
                written = (i + 1) * chunk
            return
        while written < chunk * chunks:
            known = written
            ids = np.arange(known)
            assert (var.lookup(ids) == ids[:, None] + 1).all()
            assert var.total_count()[0] >= known

    in_threads(3, work)
    assert var.total_count() == (chunk * chunks, 4)


@pytest.mark.parametrize("partition_num", [1, 2])
def test_a_store_that_threads_fill_up_is_never_overfilled(
    make_variable: MakeVariable, storage_of: StorageOf, partition_num: int
) -> None:
    rows = 1000
    var = make_variable(
        storage=storage_of(es.StorageType.DRAM, rows * 32), partition_num=partition_num
    )
    # Each batch has as many keys of one partition as of another, more than there is room for.
    batches = 400
    keys = np.arange(3 * 10 * batches)
    where = partitions_of(keys, partition_num)
    share = 10 // partition_num
    of_each = [keys[where == partition][: share * batches] for partition in range(partition_num)]
    refused = []

    def work(number: int) -> None:
        for i in range(100):
            first = share * (100 * number + i)
            ids = np.concatenate([part[first : first + share] for part in of_each])
            try:
                var.apply_gradients(ids, np.ones((10, 3), np.float32))
            except StoreFullError:
                refused.append(ids)

    in_threads(4, work)
    assert var.total_count()[0] == rows * partition_num
    assert len(refused) == batches - 100 * partition_num
    assert (var.lookup_tier(np.concatenate(refused)) == -1).all()


def test_closing_waits_for_the_calls_under_way(make_variable: MakeVariable) -> None:
    for _ in range(10):
        var = make_variable(dim=16)
        ids = np.arange(2000)
        var.apply_gradients(ids, np.ones((2000, 16), np.float32))

        def work(number: int, var: es.EmbeddingVariable = var) -> None:
            if number == 0:
                var.close()
                return
            try:
                while True:
                    var.lookup(np.arange(2000))
            except ClosedError:
                pass

        in_threads(3, work)


@pytest.mark.parametrize("how", [{"train": True}, {"count": False}], ids=["to train", "to look"])
def test_a_row_that_is_trained_where_it_lies_is_read_whole(
    make_variable: MakeVariable, storage_of: StorageOf, how: dict[str, bool]
) -> None:
    """A row below hotter ones is updated in place, while another thread copies it."""
    dim, cold = 512, 1000
    var = make_variable(
        dim=dim,
        storage=storage_of(es.StorageType.DRAM_PMEM, upper_bytes=8 * 4 * dim),
        optimizer=es.optimizers.SGD(1.0),
        initializer=es.initializers.Zeros(),
    )
    hot = np.repeat(np.arange(16), 500)
    for _ in range(20):
        var.apply_gradients(hot, np.zeros((len(hot), dim), np.float32))
    var.drain()
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for _ in range(5_000):
                var.apply_gradients([cold], np.full((1, dim), -1, np.float32))
            done.set()
            return
        ids = np.full(64, cold)
        while not done.is_set():
            rows = var.lookup(ids, **how)
            assert (rows == rows[:, :1]).all(), "a row is torn"

    in_threads(2, work)
    assert var.lookup_tier([cold]) == [1]
