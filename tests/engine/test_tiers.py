"""Variables of several tiers, the first of which is small, as they are seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engine_storage import MakeVariable, Stack
from exports import assert_same
from numpy.typing import NDArray
from programs import run_program

import embstore as es
from embstore.errors import InUseError, InvalidArgumentError

pytestmark = pytest.mark.timeout(120)

ROW_BYTES = 32  # dim 3, weights and an accumulator


def train(var: es.EmbeddingVariable, ids: NDArray[np.int64]) -> None:
    var.lookup(ids, train=True)
    var.apply_gradients(ids, np.full((*ids.shape, var.dim), 2.0, np.float32))


def rows_of(var: es.EmbeddingVariable) -> list[int]:
    return [tier["rows"] for tier in var.stats()["tiers"]]


# --- Capacity


def test_a_tier_below_the_first_that_holds_no_row_is_refused(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, tmp_path, [1024, 16])
    with pytest.raises(InvalidArgumentError, match="storage_size: 16 bytes hold no row of 32"):
        make_variable(storage=storage)
    assert list(tmp_path.iterdir()) == []


# --- Files

ON_SSD = [
    "DRAM_SSDHASH",
    "DRAM_LEVELDB",
    "DRAM_PMEM_SSDHASH",
    "DRAM_PMEM_LEVELDB",
    "HBM_DRAM_SSDHASH",
]
IN_FILES = [*ON_SSD, "DRAM_PMEM", "PMEM_LIBPMEM"]


def in_files(kind: str, path: Path, first_rows: int = 8) -> es.StorageOption:
    stack = Stack(es.StorageType[kind])
    sizes = [first_rows * ROW_BYTES] * (stack.tiers - 1)
    return stack.option(path, sizes if kind in ON_SSD else [*sizes, 1 << 20])


@pytest.mark.parametrize("kind", IN_FILES)
@pytest.mark.parametrize("partition_num", [1, 3])
def test_files_are_there_while_the_variable_is_open_and_gone_when_it_is_closed(
    make_variable: MakeVariable, tmp_path: Path, kind: str, partition_num: int
) -> None:
    var = make_variable(storage=in_files(kind, tmp_path), partition_num=partition_num)
    train(var, np.arange(500))
    var.drain()
    paths = [tier["path"] for tier in var.stats()["tiers"]]
    assert all(path is None or Path(path).exists() for path in paths)
    tiers_in_files = set(kind.split("_")) - {"DRAM", "HBM", "LIBPMEM"}
    files = sum(1 if tier == "LEVELDB" else partition_num for tier in tiers_in_files)
    assert len({*paths} - {None}) == files  # partitions share a LevelDB
    var.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", IN_FILES)
def test_two_variables_of_one_name_cant_share_a_directory(
    make_variable: MakeVariable, tmp_path: Path, kind: str
) -> None:
    first = make_variable(name="users", storage=in_files(kind, tmp_path))
    train(first, np.arange(100))
    before = first.export()
    with pytest.raises(InUseError, match=r"users.*in use by another variable"):
        make_variable(name="users", storage=in_files(kind, tmp_path))
    assert_same(first.export(), before)
    train(make_variable(name="items", storage=in_files(kind, tmp_path)), np.arange(100))
    assert_same(first.export(), before)


@pytest.mark.parametrize("kind", IN_FILES)
def test_the_files_of_a_killed_process_are_taken_over(
    make_variable: MakeVariable, tmp_path: Path, kind: str
) -> None:
    storage = in_files(kind, tmp_path)
    paths, sizes = [tier.path for tier in storage.tiers()], list(storage.storage_size or ())
    program = f"""
import os, signal
import numpy as np
import embstore as es
storage = es.StorageOption(es.StorageType.{kind}, {paths!r}, {sizes!r})
var = es.get_embedding_variable(
    "users", 3, optimizer=es.optimizers.Adagrad(0.1),
    ev_option=es.EmbeddingVariableOption(storage_option=storage))
for _ in range(5):
    var.apply_gradients(np.arange(5000), np.ones((5000, 3), np.float32))
var.drain()  # so that files hold rows
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = run_program(program)
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert list(tmp_path.iterdir())
    var = make_variable(name="users", storage=storage)
    assert var.total_count() == (0, 3)
    train(var, np.arange(1000))
    assert (var.lookup(np.arange(1000)) == var.lookup([0])).all()
    var.close()
    assert list(tmp_path.iterdir()) == []


def disk_usage(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:  # compacted away meanwhile
            continue
    return total


@pytest.mark.parametrize("compaction", ["0", "1"])
def test_the_files_of_ssdhash_stay_within_twice_the_live_rows_and_a_buffer(
    tmp_path: Path, compaction: str
) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from test_tiers import disk_usage
import embstore as es
path, rows, buffer = Path(sys.argv[1]), 60_000, 4 << 20
with es.get_embedding_variable(
    "var", 16, optimizer=es.optimizers.SGD(1.0), initializer=es.initializers.Zeros(),
    ev_option=es.EmbeddingVariableOption(storage_option=es.StorageOption(
        es.StorageType.DRAM_SSDHASH, path, [64 * 500]))
) as var:
    random = np.random.default_rng(3)
    written, most = np.zeros(rows), 0
    for _ in range(60):
        ids = random.integers(0, rows, 5000)
        var.apply_gradients(ids, np.full((ids.size, 16), -1, np.float32))
        np.add.at(written, ids, 1)
        live = 128 * np.count_nonzero(written)  # a record has 64 bytes beside the row's 64
        used = disk_usage(path)
        assert used <= 2 * live + buffer + (64 << 10), (used, live)
        most = max(most, used)
    var.drain()
    assert most > buffer
    assert (var.lookup(np.arange(rows)) == written[:, None]).all()
    assert var.stats()["demotions"] > 100_000
"""
    run = run_program(
        program, tmp_path, environment=os.environ | {"TF_SSDHASH_ASYNC_COMPACTION": compaction}
    )
    assert run.returncode == 0, run.stderr


# --- Environment


def variable_with(**environment: str) -> subprocess.CompletedProcess[str]:
    program = """
import tempfile
import numpy as np
import embstore as es
with tempfile.TemporaryDirectory() as path:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, path, [32 * 10])
    option = es.EmbeddingVariableOption(storage_option=storage)
    try:
        make = lambda name: es.get_embedding_variable(
            name, 3, optimizer=es.optimizers.Adagrad(0.1), ev_option=option)
        with make("a") as a, make("b") as b:
            for var in (a, b):
                var.apply_gradients(np.arange(2000), np.ones((2000, 3), np.float32))
                var.drain()
                print([tier["rows"] for tier in var.stats()["tiers"]])
            with open("/proc/self/status") as status:
                print(*(line for line in status if line.startswith("Threads")))
    except es.errors.InvalidArgumentError as error:
        print(error)
"""
    ended = run_program(program, environment=os.environ | environment)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "257", "99999999999", "4 "])
def test_a_bad_number_of_eviction_threads_names_the_variable(value: str) -> None:
    output = variable_with(TF_MULTI_TIER_EV_EVICTION_THREADS=value).stdout
    assert "TF_MULTI_TIER_EV_EVICTION_THREADS must be a number of threads" in output
    assert value in output


@pytest.mark.parametrize("value", ["2", "yes", "-1", "01"])
def test_a_bad_choice_of_compaction_names_the_variable(value: str) -> None:
    output = variable_with(TF_SSDHASH_ASYNC_COMPACTION=value).stdout
    assert "TF_SSDHASH_ASYNC_COMPACTION must be 0" in output
    assert value in output


def threads_with(**environment: str) -> int:
    a, b, threads = variable_with(**environment).stdout.split("\n")[:3]
    assert a == b == "[10, 1990]"
    return int(threads.split()[-1])


def test_all_variables_share_one_pool_of_as_many_eviction_threads_as_are_asked_for() -> None:
    by_default = threads_with(TF_MULTI_TIER_EV_EVICTION_THREADS="")
    assert threads_with(TF_MULTI_TIER_EV_EVICTION_THREADS="5") == by_default + 4


def test_compaction_has_a_thread_of_its_own_in_each_variable_if_asked_for() -> None:
    in_writer = threads_with(TF_SSDHASH_ASYNC_COMPACTION="0")
    assert threads_with(TF_SSDHASH_ASYNC_COMPACTION="1") == in_writer + 2
