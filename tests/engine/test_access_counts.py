"""`stats()` counts how each tier's rows are accessed: exactly as the batches require."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import MakeVariable, skip_without_library
from programs import run_program

import embstore as es
from embstore import Access

DIM = 3
WEIGHTS = DIM * 4  # bytes that a look-up copies
BLOCK = 16  # the weights, padded
ROW = 2 * BLOCK  # with Adagrad's accumulator
META = 16  # beside each row of a table with one tier
HEADER = 48  # beside each row in a memory tier below another

AccessCounts = dict[Access, tuple[int, int]]


def counted_accesses(var: es.EmbeddingVariable, tier: int = 0) -> AccessCounts:
    """Returns (accesses, bytes) by access, summed over numbers of threads and partitions."""
    accesses: Counter[Access] = Counter()
    sizes: Counter[Access] = Counter()
    tiers = var.stats()["tiers"]
    a_partition = len(tiers) // var.partition_num
    for number, told in enumerate(tiers):
        if number % a_partition != tier:
            continue
        for count in told["accesses"]:
            assert isinstance(count["access"], Access)
            assert 1 <= count["threads"] <= 64
            assert count["elapsed_ns"] >= 0
            accesses[count["access"]] += count["accesses"]
            sizes[count["access"]] += count["bytes"]
    return {access: (accesses[access], sizes[access]) for access in accesses}


def accesses_since(after: AccessCounts, before: AccessCounts) -> AccessCounts:
    changes = {}
    for access, (accesses, size) in after.items():
        accesses_before, size_before = before.get(access, (0, 0))
        if accesses != accesses_before:
            changes[access] = (accesses - accesses_before, size - size_before)
    return changes


def rows(count: int, *sizes: int) -> tuple[int, int]:
    """Returns (accesses, bytes) of `count` rows, each touched in places of these sizes."""
    return count * len(sizes), count * sum(sizes)


def gradients(ids: Any) -> Any:
    return np.ones((len(ids), DIM), np.float32)


@pytest.mark.parametrize("partition_num", [1, 3])
def test_rows_in_dram_are_loaded_by_look_ups_and_stored_and_updated_by_applies(
    make_variable: MakeVariable, partition_num: int
) -> None:
    var = make_variable(partition_num=partition_num)
    ids = np.arange(100)
    var.lookup(ids)
    assert counted_accesses(var) == {}  # there are no rows

    var.apply_gradients(np.concatenate([ids, ids[:30]]), gradients(range(130)))
    assert counted_accesses(var) == {
        Access.STORE: rows(100, ROW, META),
        Access.UPDATE: rows(100, ROW, META),
    }
    before = counted_accesses(var)
    var.lookup([*ids, 7, 7, -1, 1000], train=True)
    var.apply_gradients([7, 7, 8], gradients(range(3)))
    assert accesses_since(counted_accesses(var), before) == {
        Access.LOAD: rows(102, WEIGHTS),
        Access.UPDATE: rows(2, ROW, META),
    }


def test_accesses_are_counted_by_the_number_of_threads_at_a_tier(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(dim=64)
    ids = np.arange(5000)
    var.apply_gradients(ids, np.ones((ids.size, 64), np.float32))
    start = threading.Barrier(4)

    def look_up() -> None:
        start.wait()
        for _ in range(20):
            var.lookup(ids)

    readers = [threading.Thread(target=look_up) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    (tier,) = var.stats()["tiers"]
    loads = [count for count in tier["accesses"] if count["access"] is Access.LOAD]
    assert sum(count["accesses"] for count in loads) == 4 * 20 * ids.size
    assert all(count["bytes"] == 256 * count["accesses"] for count in loads)
    assert max(count["threads"] for count in loads) <= 4
    assert all(count["elapsed_ns"] > 0 for count in loads)


@pytest.mark.parametrize("partition_num", [1, 2])
def test_rows_that_move_between_memories_are_touched_in_both(
    make_variable: MakeVariable, tmp_path: Path, partition_num: int
) -> None:
    skip_without_library(es.StorageType.DRAM_PMEM)
    var = make_variable(
        storage=es.StorageOption(
            es.StorageType.DRAM_PMEM, [None, tmp_path], [10 * ROW, 1000 * ROW]
        ),
        partition_num=partition_num,
    )
    ids = np.arange(40 * partition_num)
    stay = 10 * partition_num
    go = 30 * partition_num
    var.apply_gradients(ids, gradients(ids))
    var.drain()
    assert counted_accesses(var, 0) == {
        Access.STORE: rows(ids.size, ROW),
        Access.UPDATE: rows(ids.size, ROW),
        Access.LOAD: rows(go, ROW),
    }
    assert counted_accesses(var, 1) == {Access.STORE: rows(go, ROW, HEADER)}

    below = ids[var.lookup_tier(ids) == 1]
    assert below.size == go
    first, second = counted_accesses(var, 0), counted_accesses(var, 1)
    var.lookup(ids, train=True)  # the update reads the rest of a row in its tier
    assert accesses_since(counted_accesses(var, 0), first) == {Access.LOAD: rows(stay, WEIGHTS)}
    assert accesses_since(counted_accesses(var, 1), second) == {Access.LOAD: rows(go, BLOCK)}

    first, second = counted_accesses(var, 0), counted_accesses(var, 1)
    var.apply_gradients(below[:5], gradients(range(5)))
    var.drain()
    assert accesses_since(counted_accesses(var, 0), first) == {
        Access.STORE: rows(5, ROW),
        Access.UPDATE: rows(5, ROW),
        Access.LOAD: rows(5, ROW),  # the rows that are demoted in exchange
    }
    assert accesses_since(counted_accesses(var, 1), second) == {
        Access.LOAD: rows(5, ROW, HEADER),
        Access.STORE: rows(5, ROW, HEADER),
    }


POOL = """
import sys
import numpy as np
import embstore as es
from embstore.checkpoint.persist.writer import finish_persists
from test_access_counts import counted_accesses

dim = int(sys.argv[2])
row = 2 * 4 * dim
var = es.get_embedding_variable("v", dim, optimizer=es.optimizers.Adagrad(0.1),
    ev_option=es.EmbeddingVariableOption(storage_option=es.StorageOption(
        es.StorageType.DRAM_PMEM, [None, sys.argv[1]], [100 * row, 8 << 20],
        durability="checkpoint")))
ids = np.arange(100)
var.apply_gradients(ids, np.ones((100, dim), np.float32))
assert counted_accesses(var, 1) == {}, counted_accesses(var, 1)
directory = sys.argv[1] + "/checkpoint"
es.persist([var], directory, global_step=1)
finish_persists(var)
print({access.name: told for access, told in counted_accesses(var, 1).items()})
var.apply_gradients(ids[:10], np.ones((10, dim), np.float32))
es.persist([var], directory, global_step=2)
finish_persists(var)
print({access.name: told for access, told in counted_accesses(var, 1).items()})
var.close()
"""


@pytest.mark.parametrize(
    ("dim", "environment", "of_rows", "of_headers"),
    [
        (16, {}, "STORE_FLUSHED", "STORE_FLUSHED"),  # 128 bytes
        (64, {}, "STORE_STREAMED", "STORE_FLUSHED"),  # 512
        (64, {"PMEM_NO_MOVNT": "1"}, "STORE_FLUSHED", "STORE_FLUSHED"),
        (16, {"PMEM_MOVNT_THRESHOLD": "100"}, "STORE_STREAMED", "STORE_FLUSHED"),
        (16, {"PMEM_NO_FLUSH": "1"}, "STORE", "STORE"),
        (64, {"PMEM_IS_PMEM_FORCE": "0"}, "STORE", "STORE"),
    ],
)
def test_a_pool_is_written_as_libpmem_copies_rows_of_that_size(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    dim: int,
    environment: dict[str, str],
    of_rows: str,
    of_headers: str,
) -> None:
    skip_without_library(es.StorageType.DRAM_PMEM)
    for name, value in {"PMEM_IS_PMEM_FORCE": "1", **environment}.items():
        monkeypatch.setenv(name, value)
    ended = run_program(POOL, place, str(dim))
    assert ended.returncode == 0, ended.stderr
    for written, line in zip((100, 110), ended.stdout.splitlines(), strict=True):
        expected: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for access, size in ((of_headers, 64), (of_rows, 8 * dim)):
            expected[access] += written
            sizes[access] += written * size
        assert line == str({access: (expected[access], sizes[access]) for access in expected})


@pytest.mark.parametrize("direct", [False, True])
def test_files_are_read_and_written_by_calls(
    make_variable: MakeVariable, tmp_path: Path, direct: bool
) -> None:
    dim, row, record = 64, 512, 512 + 64
    var = make_variable(
        dim=dim,
        storage=es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            [None, tmp_path],
            [256 * row],
            ssdhash_option=es.SSDHashOption(
                direct_io=direct, io_scheme="pread", buffer_bytes=128 << 10
            ),
        ),
    )
    ids = np.arange(2048)
    var.apply_gradients(ids, np.ones((ids.size, dim), np.float32))
    var.drain()
    written = counted_accesses(var, 1)
    assert set(written) == {Access.FILE_WRITE}
    calls, size = written[Access.FILE_WRITE]
    in_files = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    # Blocks are written when an eighth of the buffer is full; the last may be written again as they
    # fill.
    assert in_files <= size <= in_files + calls * 4096
    assert size // calls <= (16 << 10) + record + 4096

    below = ids[var.lookup_tier(ids) == 1]
    some = np.sort(below)[::50]  # far apart in the files
    before = counted_accesses(var, 1)
    var.lookup(some, train=True)
    reads = accesses_since(counted_accesses(var, 1), before)
    assert set(reads) == {Access.FILE_READ}
    calls, size = reads[Access.FILE_READ]
    assert 1 <= calls <= some.size
    assert size >= calls * record
    if direct:
        assert size % 4096 == 0
    else:
        assert size <= some.size * (record + 2048)


def test_rows_that_come_up_for_a_look_up_are_read_once(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    var = make_variable(
        dim=64,
        storage=es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            [None, tmp_path],
            [256 * 512],
            ssdhash_option=es.SSDHashOption(direct_io=True, buffer_bytes=128 << 10),
        ),
    )
    ids = np.arange(2048)
    var.apply_gradients(ids, np.ones((ids.size, 64), np.float32))
    var.drain()
    some = ids[var.lookup_tier(ids) == 1][:200]
    before = counted_accesses(var, 1)
    var.lookup(some, train=True)
    read = counted_accesses(var, 1)
    var.lookup(some)
    var.drain()
    assert var.lookup_tier(some).tolist() == [0] * some.size
    reads = accesses_since(counted_accesses(var, 1), read)[Access.FILE_READ]
    assert reads == accesses_since(read, before)[Access.FILE_READ]


def test_a_row_in_the_page_cache_counts_as_no_file_read(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    var = make_variable(
        dim=64,
        storage=es.StorageOption(es.StorageType.DRAM_SSDHASH, [None, tmp_path], [64 * 512]),
    )
    ids = np.arange(4096)
    var.apply_gradients(ids, np.ones((ids.size, 64), np.float32))
    var.drain()
    var.lookup(ids, train=True)
    assert Access.FILE_READ not in counted_accesses(var, 1)


def test_leveldb_counts_the_records_that_it_is_asked_for(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    skip_without_library(es.StorageType.DRAM_LEVELDB)
    var = make_variable(
        storage=es.StorageOption(es.StorageType.DRAM_LEVELDB, [None, tmp_path], [10 * ROW])
    )
    ids = np.arange(300)
    var.apply_gradients(ids, gradients(ids))
    var.drain()
    calls, size = counted_accesses(var, 1)[Access.FILE_WRITE]
    assert calls >= 1
    record = size // 290
    assert size == 290 * record
    below = ids[var.lookup_tier(ids) == 1]
    var.lookup(below, train=True)
    assert counted_accesses(var, 1)[Access.FILE_READ] == rows(290, record)


@pytest.mark.parametrize("kind", ["HBM_DRAM", "DRAM_SSDHASH", "DRAM_LEVELDB", "DRAM_PMEM"])
def test_frequencies_and_versions_of_rows_in_other_tiers_are_read_in_one_phase_a_tier(
    make_variable: MakeVariable, tmp_path: Path, kind: str
) -> None:
    storage_type = es.StorageType[kind]
    skip_without_library(storage_type)
    paths = None if kind == "HBM_DRAM" else [None, tmp_path]
    storage = es.StorageOption(storage_type, paths, [100 * ROW, 1 << 20][: 1 + (paths is None)])
    var = make_variable(storage=storage)
    ids = np.arange(2000)
    var.apply_gradients(ids, np.ones((2000, DIM), np.float32))
    var.apply_gradients(ids[::2], np.ones((1000, DIM), np.float32))
    var.drain()
    asked = np.concatenate([ids, ids[::-1], [-1]])
    with es.record_accesses(var) as recorded:
        frequencies, versions = var.get_frequency(asked), var.get_version(asked)
    np.testing.assert_array_equal(frequencies, [*np.tile([2, 1], 1000), *np.tile([1, 2], 1000), 0])
    np.testing.assert_array_equal(versions, [*np.tile([1, 0], 1000), *np.tile([0, 1], 1000), -1])
    assert recorded.phases.size <= 2 * 2 * 2
