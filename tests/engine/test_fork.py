"""Forked processes can neither use nor harm the variables of their parent."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import (
    GPU,
    MIB,
    MakeVariable,
    Stack,
    StorageOf,
    skip_without_library,
    variable_with_options,
)
from programs import run_function, run_program

import embstore as es
from embstore import _core
from embstore.errors import ForkedError, InUseError
from embstore.gpu.choice import EMULATED
from embstore.options import TIER_KINDS

pytestmark = [
    pytest.mark.timeout(120),  # a lock whose holder wasn't forked hangs
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

KEEPING = [
    es.StorageType.DRAM_SSDHASH,
    es.StorageType.DRAM_PMEM_SSDHASH,
    es.StorageType.HBM_DRAM_SSDHASH,
]

IDS = np.arange(5000)


def in_child(work: Callable[[], None]) -> None:
    """Forks a process that does the work and exits. Fails with its traceback if the work raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        # A child that hangs prints where.
        faulthandler.dump_traceback_later(60, exit=True, file=writer)
        try:
            os.close(reader)
            work()
            status = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(writer)
    try:
        with os.fdopen(reader) as told:
            problem = told.read()
    except BaseException:  # such as a test's time limit
        os.kill(child, signal.SIGKILL)
        raise
    assert os.waitpid(child, 0)[1] == 0, problem


class KeptTable:
    """A variable whose rows outlive it, and the variables that took the rows over."""

    def __init__(self, kind: es.StorageType, directory: Path) -> None:
        self.variables: list[es.EmbeddingVariable] = []
        lower = len(TIER_KINDS[kind]) - 1
        self._storage = es.StorageOption(
            kind,
            directory,
            [500 * 32] * lower,
            ssdhash_option=es.SSDHashOption(keep_files=True),
        )

    def open(self) -> es.EmbeddingVariable:
        self.variables.append(
            variable_with_options(
                "kept",
                3,
                self._storage,
                initializer=es.initializers.RandomUniform(seed=3),
                optimizer=es.optimizers.Adagrad(0.1),
            )
        )
        return self.variables[-1]


@pytest.fixture(params=KEEPING, ids=lambda kind: kind.name)
def kept_table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeptTable]:
    skip_without_library(request.param)
    made = KeptTable(request.param, tmp_path)
    yield made
    for var in made.variables:
        var.close()


def trained(var: es.EmbeddingVariable) -> es.EmbeddingVariable:
    for step in range(3):
        var.apply_gradients(IDS, np.full((IDS.size, 3), step + 0.5, np.float32))
    return var


def expect_forked(call: Callable[[], Any]) -> None:
    with pytest.raises(ForkedError, match="open it in the worker, or start workers by spawn"):
        call()


def test_every_use_of_an_inherited_variable_is_an_error_that_says_what_to_do(
    make_variable: MakeVariable, tiered_stack: Stack, storage_of: StorageOf, tmp_path: Path
) -> None:
    for partition_num in (1, 2):
        var = make_variable(storage=storage_of(tiered_stack), partition_num=partition_num)
        var.apply_gradients([1, 2, 3], np.ones((3, 3), np.float32))
        es.save(tmp_path / "save", [var], 1)

        def use(var: es.EmbeddingVariable = var) -> None:
            expect_forked(lambda: var.lookup([1]))
            expect_forked(lambda: var.lookup([1], train=True))
            expect_forked(lambda: var.apply_gradients([1], np.ones((1, 3), np.float32)))
            expect_forked(lambda: var.lookup_tier([1]))
            expect_forked(lambda: var.get_frequency([1]))
            expect_forked(lambda: var.get_version([1]))
            expect_forked(var.total_count)
            expect_forked(var.export)
            expect_forked(var.stats)
            expect_forked(var.drain)
            expect_forked(var.damaged_keys)
            expect_forked(var.drop_damaged)
            expect_forked(lambda: es.save(tmp_path / "save", [var], 2))
            expect_forked(lambda: es.save_incremental(tmp_path / "other", [var], 2))
            expect_forked(lambda: es.restore(tmp_path / "save", [var]))
            assert var.name in repr(var)
            with var:  # leaving closes, which does nothing here
                pass
            var.close()
            expect_forked(lambda: var.lookup([1]))

        in_child(use)
        assert var.total_count() == (3, 3)
        assert es.restore(tmp_path / "save", [var]) == 1


@pytest.mark.parametrize("ending", ["looks up", "closes", "drops it", "does nothing"])
def test_the_parents_rows_are_whole_whatever_its_children_did(
    kept_table: KeptTable, ending: str
) -> None:
    trained(kept_table.open())

    def work() -> None:
        if ending == "looks up":
            expect_forked(lambda: kept_table.variables[0].lookup(IDS))
        elif ending == "closes":
            kept_table.variables[0].close()
        elif ending == "drops it":
            kept_table.variables.clear()
            gc.collect()

    var = kept_table.variables[0]
    wanted = var.export()
    del var
    gc.collect()  # else the children would collect garbage of earlier tests
    for _ in range(3):
        in_child(work)
    var = kept_table.variables[0]
    rows = var.lookup(IDS)
    var.apply_gradients(IDS[:10], np.zeros((10, 3), np.float32))
    np.testing.assert_array_equal(var.lookup(IDS), rows)
    var.close()
    again = kept_table.open()
    got = again.export()
    np.testing.assert_array_equal(got["values"], wanted["values"])
    np.testing.assert_array_equal(got["keys"], IDS)


@contextlib.contextmanager
def a_child_that_lives_on() -> Iterator[None]:
    """Forks a child that lives until the scope ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent is done
        os._exit(0)
    try:
        yield
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_a_child_that_lives_on_does_not_hold_the_parents_files(
    kept_table: KeptTable,
) -> None:
    var = trained(kept_table.open())
    with a_child_that_lives_on():
        var.close()
        again = kept_table.open()  # needs the lock on the files
        assert again.total_count() == (IDS.size, 3)


def test_a_child_that_lives_on_does_not_hold_the_parents_checkpoints(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    skip_without_library(es.StorageType.DRAM_PMEM)
    storage = es.StorageOption(
        es.StorageType.DRAM_PMEM, [None, tmp_path], [MIB, 2 * MIB], durability="checkpoint"
    )
    var = make_variable(name="var", storage=storage)
    var.apply_gradients(IDS[:50], np.ones((50, 3), np.float32))
    es.persist([var], tmp_path / "checkpoints", global_step=1)
    with a_child_that_lives_on():
        var.close()
        again = make_variable(name="var", storage=storage, restores=True)
        assert es.restore_persisted([again], tmp_path / "checkpoints") == 1
        assert again.total_count() == (50, 3)


def test_a_child_can_make_and_train_a_variable_of_its_own(
    make_variable: MakeVariable, storage_of: StorageOf, tiered_stack: Stack
) -> None:
    def make(name: str) -> es.EmbeddingVariable:
        size = 4096 * 32  # rows move between tiers
        return make_variable(
            name=name, storage=storage_of(tiered_stack, size, upper_bytes=256 * 32)
        )

    ids = np.arange(2000)
    grads = np.ones((ids.size, 3), np.float32)
    mine = make("mine")
    mine.apply_gradients(ids, grads)

    def work() -> None:
        name = tiered_stack.storage_type.name
        on_a_gpu = name.startswith("HBM") and GPU != EMULATED
        if on_a_gpu or name.endswith("LEVELDB"):
            # CUDA, or LevelDB's only background thread, doesn't exist in the child: an error is
            # better than a table that hangs.
            with pytest.raises(ForkedError, match=r"(CUDA|LevelDB) was in use.*spawn"):
                make("childs")
            return
        childs = make("childs")
        for _ in range(3):
            childs.apply_gradients(ids, grads)
        childs.drain()
        assert childs.total_count() == (2000, 3)
        assert childs.stats()["demotions"] > 0
        assert (childs.get_frequency(ids) == 3).all()
        childs.close()

    in_child(work)
    mine.apply_gradients(ids, grads)
    mine.drain()
    assert (mine.get_frequency(ids) == 2).all()


def fork_while_threads_train_and_export(directory: str) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, directory, [MIB, 63 * MIB])
    var = variable_with_options(
        "var", 3, storage, optimizer=es.optimizers.Adagrad(0.1), partition_num=2
    )
    done = threading.Event()

    def train() -> None:
        while not done.is_set():
            var.apply_gradients(IDS, np.ones((IDS.size, 3), np.float32))

    def export() -> None:
        while not done.is_set():
            var.export()

    def work() -> None:
        expect_forked(lambda: var.apply_gradients(IDS, np.ones((IDS.size, 3), np.float32)))
        expect_forked(lambda: es.save("/nowhere", [var], 1))
        expect_forked(var.export)
        var.close()

    threads = [threading.Thread(target=train), threading.Thread(target=export)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            in_child(work)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_locks_that_threads_held_at_the_fork_stop_no_child(tmp_path: Path) -> None:
    run_function("test_fork", f"fork_while_threads_train_and_export({str(tmp_path)!r})")


def fork_in_the_middle_of_updates() -> None:
    var = es.get_embedding_variable("var", 3, optimizer=es.optimizers.Adagrad(0.1), partition_num=2)
    done = threading.Event()

    def work() -> None:
        expect_forked(lambda: var.apply_gradients([1, 2], np.ones((2, 3), np.float32)))
        var.internals.forget_prefetched()

    def train() -> None:
        while not done.is_set():
            var.apply_gradients([1, 2], np.ones((2, 3), np.float32))

    threads = [threading.Thread(target=train) for _ in range(2)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):  # each child finds a held lock in half of the cases
            in_child(work)
    finally:
        done.set()
        sys.setswitchinterval(interval_s)
        for thread in threads:
            thread.join()


def test_a_child_forked_in_the_middle_of_an_update_refuses_at_once() -> None:
    """Other threads may hold any lock of Python's that an update takes."""
    run_function("test_fork", "fork_in_the_middle_of_updates()")


def test_an_update_in_a_child_is_refused_before_it_calls_the_core(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the fork, a thread may have been in the middle of anything in the core."""

    def asked(_: object) -> None:
        raise AssertionError("it is asked")

    var = make_variable(partition_num=2)
    monkeypatch.setattr(_core, "first_not_finite", asked)
    in_child(
        lambda: expect_forked(lambda: var.apply_gradients([1, 2], np.ones((2, 3), np.float32)))
    )


@pytest.mark.long
def test_a_child_forked_while_a_thread_opens_files_is_not_stopped_by_its_locks(
    make_variable: MakeVariable, tmp_path: Path
) -> None:
    """The thread may hold any lock that the process has for all its variables."""
    skip_without_library(es.StorageType.DRAM_LEVELDB)

    def open_one(kind: es.StorageType, name: str) -> es.EmbeddingVariable:
        storage = es.StorageOption(kind, [None, tmp_path], [32])
        return make_variable(name=name, storage=storage)

    done = threading.Event()

    def open_and_close() -> None:
        while not done.is_set():
            for kind in (es.StorageType.DRAM_SSDHASH, es.StorageType.DRAM_LEVELDB):
                with open_one(kind, "parents") as variable:
                    variable.apply_gradients(IDS[:50], np.ones((50, 3), np.float32))
                    variable.drain()

    def work() -> None:
        with open_one(es.StorageType.DRAM_SSDHASH, "childs") as variable:
            variable.apply_gradients(IDS[:50], np.ones((50, 3), np.float32))
            variable.drain()
            assert variable.total_count() == (50, 3)
        with pytest.raises(ForkedError, match=r"LevelDB.*spawn"):
            open_one(es.StorageType.DRAM_LEVELDB, "childs")

    with open_one(es.StorageType.DRAM_LEVELDB, "first"):
        thread = threading.Thread(target=open_and_close)
        thread.start()
        try:
            for _ in range(100):
                in_child(work)
        finally:
            done.set()
            thread.join()


BY_IO_URING = """
import os, sys
from pathlib import Path
import numpy as np
import embstore as es

def make(name):
    return es.get_embedding_variable(
        name, 3, initializer=es.initializers.Zeros(), optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=es.StorageOption(
            es.StorageType.DRAM_SSDHASH, [None, Path(sys.argv[1])], [256 * 32],
            ssdhash_option=es.SSDHashOption(io_scheme=es.IoScheme.IO_URING))))

ids = np.arange(5000)

def train(var):
    for _ in range(3):
        var.apply_gradients(ids, np.ones((5000, 3), np.float32))
    var.drain()

try:
    mine = make("mine")
except es.errors.StorageError as error:
    assert "io_uring can't be had" in str(error)
    sys.exit(77)
train(mine)
children = []
for name in ("one", "other"):
    child = os.fork()
    if child == 0:
        own = make(name)
        for _ in range(5):
            train(own)
        assert (own.get_frequency(ids) == 15).all()
        own.close()
        os._exit(0)
    children.append(child)
for _ in range(4):
    train(mine)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
train(mine)
plain = es.get_embedding_variable(
    "plain", 3, initializer=es.initializers.Zeros(), optimizer=es.optimizers.Adagrad(0.1))
for _ in range(6):
    train(plain)
assert (mine.lookup(ids) == plain.lookup(ids)).all()
"""


def test_a_parent_and_its_children_read_by_io_uring_at_once(tmp_path: Path) -> None:
    ended = run_program(BY_IO_URING, tmp_path)
    if ended.returncode == 77:
        pytest.skip("io_uring can't be had here")
    assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"


EXITS = """
import os, sys
from pathlib import Path
import numpy as np
import embstore as es
from programs import kept_variable
var = kept_variable(Path(sys.argv[1]))
ids = np.arange(5000)
var.apply_gradients(ids, np.ones((5000, 16), np.float32))
child = os.fork()
if child == 0:
    sys.exit(0)  # with all that Python does at its end
assert os.waitpid(child, 0)[1] == 0
assert var.total_count()[0] == 5000
var.close()
with kept_variable(Path(sys.argv[1])) as again:
    assert again.total_count()[0] == 5000
"""


def test_a_child_that_ends_as_programs_do_closes_nothing(tmp_path: Path) -> None:
    ended = run_program(EXITS, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_the_parents_files_are_in_use_as_long_as_it_has_them(
    kept_table: KeptTable,
) -> None:
    trained(kept_table.open())

    def work() -> None:
        with pytest.raises(InUseError, match="in use"):
            kept_table.open()

    in_child(work)
