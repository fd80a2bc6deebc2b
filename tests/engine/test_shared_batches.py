"""Large batches, which several threads share, give the same result as by one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_table import make_durable_table
from engine_storage import MIB, MakeVariable, Stack, StorageOf, row_bytes
from exports import assert_same
from numpy.typing import NDArray
from programs import run_program
from test_access_counts import accesses_since, counted_accesses
from test_promotion import Ranks

import embstore as es
from embstore.errors import DamagedRowsError, InvalidArgumentError, StoreFullError

pytestmark = pytest.mark.timeout(120)  # threads that wait for each other hang

DIM = 4
ADAGRAD = es.optimizers.Adagrad(0.1)
ROW_BYTES = row_bytes(DIM, ADAGRAD)
KEYS = 15_000
IDS = 20_000  # in a batch, which several threads share

KINDS = [
    es.StorageType.DRAM,
    es.StorageType.PMEM_LIBPMEM,
    es.StorageType.DRAM_PMEM,
    es.StorageType.DRAM_SSDHASH,
    es.StorageType.DRAM_LEVELDB,
    es.StorageType.DRAM_PMEM_SSDHASH,
    es.StorageType.HBM_DRAM,
    es.StorageType.HBM_DRAM_SSDHASH,
]


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    """Takes more threads than the computer may have processors, so that they meet in any order."""
    before = es.get_num_threads()
    es.set_num_threads(4)
    yield
    es.set_num_threads(before)


class OneThread:
    """A scope in which one thread does every batch."""

    def __enter__(self) -> None:
        self._before = es.get_num_threads()
        es.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        es.set_num_threads(self._before)


def batch(number: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns a batch many of whose ids occur again, some very often. The sums of its gradients
    depend on their order."""
    random = np.random.default_rng(number)
    ids = np.minimum(random.integers(0, KEYS, IDS), random.integers(0, KEYS, IDS))
    ids[::5] = number
    return ids, random.standard_normal((IDS, DIM), np.float32)


@pytest.mark.parametrize(("partition_num", "filter_freq"), [(1, 0), (1, 3), (2, 3)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_of_shared_batches_are_the_same_to_the_bit(
    make_variable: MakeVariable,
    storage_of: StorageOf,
    kind: es.StorageType,
    partition_num: int,
    filter_freq: int,
) -> None:
    options: dict[str, Any] = {
        "dim": DIM,
        "optimizer": ADAGRAD,
        "partition_num": partition_num,
        "filter": es.CounterFilter(filter_freq) if filter_freq else None,
    }
    together, alone = (
        make_variable(
            storage=storage_of(kind, 8 * MIB, upper_bytes=partition_num * 2000 * ROW_BYTES),
            **options,
        )
        for _ in range(2)
    )
    for number in range(6):
        ids, grads = batch(number)
        for count in (False, True):
            rows = together.lookup(ids, count=count)
            with OneThread():
                np.testing.assert_array_equal(rows, alone.lookup(ids, count=count))
        rows = together.lookup(ids, train=True)
        together.apply_gradients(ids, grads)
        with OneThread():
            np.testing.assert_array_equal(rows, alone.lookup(ids, train=True))
            alone.apply_gradients(ids, grads)
    assert_same(together.export(), alone.export())
    for name in ("hits", "misses", "without_row"):
        if Stack(kind).tiers == 1:
            assert together.stats()[name] == alone.stats()[name]


@pytest.mark.parametrize("strategy", es.CacheStrategy, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("kind", ["DRAM_PMEM", "DRAM_SSDHASH", "DRAM_PMEM_SSDHASH", "HBM_DRAM"])
def test_ranks_are_exact_once_all_accesses_are_counted(
    make_variable: MakeVariable, storage_of: StorageOf, kind: str, strategy: es.CacheStrategy
) -> None:
    room = 2000
    stack = Stack(es.StorageType[kind])
    storage = storage_of(
        stack,
        8 * MIB,
        upper_bytes=room * ROW_BYTES,
        cache_strategy=strategy,
    )
    var = make_variable(dim=DIM, optimizer=ADAGRAD, storage=storage)
    ranks = Ranks(KEYS)
    order = np.random.default_rng(0).permutation(KEYS)
    var.apply_gradients(order, np.ones((KEYS, DIM), np.float32))
    ranks.access(order)
    for number in range(5):
        ids, grads = batch(number)
        var.lookup(ids)
        ranks.access(ids)
        if number % 2:
            var.apply_gradients(ids, grads)
            ranks.access(ids)
        var.drain()
        if strategy is es.CacheStrategy.LRU:
            ranks.accesses[:] = 0  # the last access alone counts
        assert var.lookup_tier(np.arange(KEYS)).tolist() == ranks.tiers([room] * (stack.tiers - 1))


@pytest.mark.parametrize("kinds", [["DRAM"], ["DRAM_PMEM"], ["DRAM", "HBM_DRAM", "DRAM_SSDHASH"]])
def test_several_variables_of_a_step_are_the_same_to_the_bit(
    make_variable: MakeVariable, storage_of: StorageOf, kinds: list[str]
) -> None:
    def variables() -> list[es.EmbeddingVariable]:
        return [
            make_variable(
                dim=DIM + i % 3,
                optimizer=ADAGRAD,
                storage=storage_of(
                    es.StorageType[kinds[i % len(kinds)]], 8 * MIB, upper_bytes=MIB // 16
                ),
            )
            for i in range(7)
        ]

    together, alone = variables(), variables()
    for step in range(4):
        random = np.random.default_rng(step)
        ids = [random.integers(0, 3000, 3000 if i == 5 else 1500) for i in range(7)]
        grads = [
            random.standard_normal((own.size, var.dim), np.float32)
            for own, var in zip(ids, together, strict=True)
        ]
        rows = es.lookup_many(together, ids, train=True)
        es.apply_many(together, ids, grads, step)
        with OneThread():
            expected = es.lookup_many(alone, ids, train=True)
            es.apply_many(alone, ids, grads, step)
        for found, wanted in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    for left, right in zip(together, alone, strict=True):
        assert_same(left.export(), right.export())


def test_an_error_of_one_variable_names_it_and_stops_no_other(make_variable: MakeVariable) -> None:
    small = es.StorageOption(es.StorageType.DRAM, storage_size=[100 * ROW_BYTES])
    variables = [
        make_variable(name=f"v{i}", dim=DIM, storage=small if i in (2, 4) else None)
        for i in range(6)
    ]
    ids = [np.arange(2000)] * 6
    grads = [np.ones((2000, DIM), np.float32)] * 6
    with pytest.raises(StoreFullError, match=r"^v2: the batch brings 2000 new rows"):
        es.apply_many(variables, ids, grads)
    assert [var.total_count()[0] for var in variables] == [2000, 2000, 0, 2000, 0, 2000]


@pytest.mark.parametrize("kind", ["DRAM", "DRAM_PMEM"])
def test_a_batch_that_fits_exactly_is_taken_and_one_more_row_is_refused(
    make_variable: MakeVariable, storage_of: StorageOf, kind: str
) -> None:
    rows = 9000
    var = make_variable(
        dim=DIM,
        optimizer=ADAGRAD,
        storage=storage_of(
            es.StorageType[kind],
            rows * ROW_BYTES,
            upper_bytes=1000 * ROW_BYTES if kind == "DRAM_PMEM" else 0,
        ),
    )
    var.apply_gradients(np.arange(4000), np.ones((4000, DIM), np.float32))
    before = var.export()
    grads = np.ones((rows + 1, DIM), np.float32)
    with pytest.raises(StoreFullError, match=r"brings 5001 new rows, .* room for 5000 more"):
        var.apply_gradients(np.arange(rows + 1), grads)
    assert_same(var.export(), before)
    var.apply_gradients(np.arange(rows), grads[:rows])
    var.apply_gradients(
        np.arange(rows), grads[:rows]
    )  # there'd be no room if every row counted as new
    assert var.total_count()[0] == rows
    assert (var.get_frequency(np.arange(rows)) == np.where(np.arange(rows) < 4000, 3, 2)).all()


def test_all_damaged_rows_of_a_batch_are_named(place: Path) -> None:
    keys = np.arange(12_000)
    with make_durable_table(place, cache_rows=100, pool_bytes=16 << 20) as var:
        var.apply_gradients(keys, np.ones((keys.size, var.dim), np.float32))
        es.persist([var], place / "checkpoints")
    pool = place / "table.pool"
    content = bytearray(pool.read_bytes())
    records = [at for at in range(4096, len(content), 256) if any(content[at : at + 64])]
    for record in records[::50]:
        content[record + 66] ^= 1  # in its floats
    pool.write_bytes(content)
    grads = np.ones((keys.size, DIM), np.float32)
    with make_durable_table(place, cache_rows=100, pool_bytes=16 << 20) as var:
        es.restore_persisted([var], place / "checkpoints")
        damaged = set(var.damaged_keys().tolist())
        assert 200 < len(damaged) < 300
        with pytest.raises(DamagedRowsError) as told:
            var.lookup(keys)
        assert set(told.value.keys) == damaged
        with pytest.raises(DamagedRowsError) as told:
            var.apply_gradients(keys, grads)
        assert set(told.value.keys) == damaged
        others = np.setdiff1d(keys, list(damaged))
        assert (var.get_frequency(others) == 1).all()  # no row was trained
        var.apply_gradients(others, grads[: others.size])


def test_the_first_value_that_is_not_finite_is_named(make_variable: MakeVariable) -> None:
    var = make_variable(dim=DIM)
    ids, grads = np.arange(200_000), np.ones((200_000, DIM), np.float32)
    grads[[60_000, 130_000, 199_999], 2] = np.nan, np.inf, np.nan
    with pytest.raises(InvalidArgumentError, match="60000"):
        var.apply_gradients(ids, grads)
    assert var.total_count()[0] == 0


PROGRAM = """
import contextlib, os, sys
import numpy as np
import embstore as es

var = es.get_embedding_variable("var", 4, optimizer=es.optimizers.SGD(0.1))
if len(sys.argv) > 1:
    es.set_num_threads(int(sys.argv[1]))
recording = es.record_accesses([var]) if "recorded" in sys.argv else contextlib.nullcontext()
before = len(os.listdir("/proc/self/task"))
ids, grads = np.arange(50_000), np.ones((50_000, 4), np.float32)
with recording:
    var.apply_gradients(ids, grads)
    var.lookup(ids)
    es.apply_many([var], [ids], [grads])
print(es.get_num_threads(), len(os.listdir("/proc/self/task")) - before)
"""


def threads_used(*arguments: str, environment: dict[str, str]) -> tuple[int, int]:
    """Returns how many threads may be used, and how many more exist after the batches."""
    done = run_program(PROGRAM, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    may, more = done.stdout.split()
    return int(may), int(more)


@pytest.mark.parametrize(
    ("argument", "environment", "threads"),
    [
        ([], {}, min(len(os.sched_getaffinity(0)), 16)),
        ([], {"OMP_NUM_THREADS": "1"}, 1),
        ([], {"OMP_NUM_THREADS": "3,2"}, 3),
        ([], {"OMP_NUM_THREADS": "64"}, 16),
        ([], {"OMP_NUM_THREADS": "many"}, min(len(os.sched_getaffinity(0)), 16)),
        (["5"], {"OMP_NUM_THREADS": "1"}, 5),
        (["1"], {}, 1),
    ],
)
def test_as_many_threads_are_used_as_were_asked_for(
    argument: list[str], environment: dict[str, str], threads: int
) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    assert threads_used(*argument, environment={**variables, **environment}) == (
        threads,
        threads - 1,
    )


def test_a_recorded_batch_uses_one_thread() -> None:
    assert threads_used("3", environment=dict(os.environ)) == (3, 2)
    assert threads_used("3", "recorded", environment=dict(os.environ)) == (3, 0)


@pytest.mark.parametrize("count", [0, -1, 1025, True, 2.0, "2"])
def test_another_number_of_threads_is_refused(count: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="count must be"):
        es.set_num_threads(count)
    assert es.get_num_threads() == 4


@pytest.mark.parametrize("threads", [1, 4])
def test_an_update_reads_no_row_of_a_file_again_after_its_look_up(
    make_variable: MakeVariable, storage_of: StorageOf, threads: int
) -> None:
    es.set_num_threads(threads)
    storage = storage_of(es.StorageType.DRAM_LEVELDB, 8 * MIB, upper_bytes=1000 * ROW_BYTES)
    var = make_variable(dim=DIM, optimizer=ADAGRAD, storage=storage)
    ids, grads = np.arange(12_000), np.ones((12_000, DIM), np.float32)
    var.apply_gradients(ids, grads)
    var.drain()
    missed = int((var.lookup_tier(ids) == 1).sum())
    before = counted_accesses(var, tier=1)
    var.lookup(ids, train=True)
    var.apply_gradients(ids, grads)
    var.drain()
    calls, _ = accesses_since(counted_accesses(var, tier=1), before)[es.Access.FILE_READ]
    assert calls == missed


@pytest.mark.parametrize("threads", [1, 4])
def test_an_update_leaves_the_rows_that_another_look_up_read_to_its_own_update(
    make_variable: MakeVariable, storage_of: StorageOf, threads: int
) -> None:
    storage = storage_of(es.StorageType.DRAM_LEVELDB, 8 * MIB, upper_bytes=1000 * ROW_BYTES)
    var = make_variable(dim=DIM, optimizer=ADAGRAD, storage=storage)
    keys, grads = np.arange(24_000), np.ones((24_000, DIM), np.float32)
    var.apply_gradients(keys, grads)
    var.drain()
    es.set_num_threads(threads)
    first, second = keys[:10_000], keys[10_000:20_000]
    before = counted_accesses(var, tier=1)
    var.lookup(first, train=True)  # too much to be kept beside the other's rows
    var.lookup(second, train=True)
    var.apply_gradients(first, grads[:10_000])
    var.apply_gradients(second, grads[:10_000])
    calls, _ = accesses_since(counted_accesses(var, tier=1), before)[es.Access.FILE_READ]
    assert calls <= 2 * first.size + second.size
