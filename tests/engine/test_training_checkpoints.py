"""Checkpoints of a training in one process: rows and the program's own files, of the same step."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import open_variable, train
from durable_table import (
    CACHE_ROWS,
    contents,
    make_durable_table,
    pool_bytes_above_ssd,
    rows_per_tier,
)
from durable_table import train as train_durable
from engine_storage import Stack, skip_without_library
from exports import assert_same
from forked import forked
from programs import run_program
from reporting_lock import ReportingLock

import embstore as es
from embstore.checkpoint.training import checkpoints as training_checkpoints
from embstore.checkpoint.training.tables import restore_tables
from embstore.errors import CheckpointError, ClosedError, InvalidArgumentError, StorageError


@pytest.mark.parametrize("partition_num", [1, 3])
def test_rows_and_files_of_a_step_come_back_together(tmp_path: Path, partition_num: int) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.restore([var]) is None
        for step in range(1, 5):
            train(var, seed=step)
            with checkpoints.checkpoint(step, [var]) as folder:
                (folder / "dense.txt").write_text(f"dense of {step}")
        wanted = var.export()
        train(var, seed=9)  # lost
    stack = Stack(es.StorageType.DRAM_SSDHASH)
    with (
        open_variable(stack, partition_num=partition_num) as var,
        es.Checkpoints(tmp_path / "checkpoints") as checkpoints,
    ):
        found = checkpoints.restore([var])
        assert found is not None
        assert found.step == 4
        assert (found.path / "dense.txt").read_text() == "dense of 4"
        assert_same(var.export(), wanted)
    assert sorted(path.name[-1] for path in (tmp_path / "checkpoints").glob("step-*")) == ["3", "4"]


@pytest.mark.parametrize(
    "storage_type", [es.StorageType.DRAM_PMEM, es.StorageType.DRAM_PMEM_SSDHASH]
)
def test_durable_tables_are_persisted(place: Path, storage_type: es.StorageType) -> None:
    skip_without_library(storage_type)
    # A quarter of 200 slots has room for the rows, at most 40, that change between two checkpoints.
    pool_bytes = pool_bytes_above_ssd(CACHE_ROWS) + 96 * 256

    def table() -> es.EmbeddingVariable:
        return make_durable_table(place, storage_type=storage_type, pool_bytes=pool_bytes)

    with table() as var, open_variable() as other:
        checkpoints = es.Checkpoints(place / "checkpoints")
        checkpoints.restore([var, other])
        train_durable(var, range(60))
        for step in range(3):
            train_durable(var, range(60 + 2 * step, 62 + 2 * step))
            train(other, seed=step)
            with checkpoints.checkpoint(step, [var, other]) as folder:
                (folder / "dense.txt").write_text(str(step))
        wanted, wanted_of_other = contents(var), other.export()
        if storage_type is es.StorageType.DRAM_PMEM_SSDHASH:
            assert rows_per_tier(var)[-1] > 60
        train_durable(var, range(66, 68))
    with table() as var, open_variable() as other:
        found = es.Checkpoints(place / "checkpoints").restore([var, other])
        assert found is not None
        assert (found.path / "dense.txt").read_text() == "2"
        assert contents(var) == wanted
        assert_same(other.export(), wanted_of_other)


@pytest.mark.parametrize("durable_first", [True, False])
def test_a_restore_that_is_refused_changes_no_table(place: Path, durable_first: bool) -> None:
    pools = place / "pools"
    pools.mkdir()
    with make_durable_table(pools) as var, open_variable() as other:
        checkpoints = es.Checkpoints(place / "checkpoints")
        train_durable(var, range(10))
        train(other, seed=1)
        with checkpoints.checkpoint(1, [var, other]):
            pass
    shutil.rmtree(pools)  # its medium is another one now
    pools.mkdir()
    with make_durable_table(pools) as var, open_variable() as other:
        train_durable(var, range(20, 30))
        train(other, seed=2)
        wanted, wanted_of_other = contents(var), other.export()
        refused = pytest.raises(CheckpointError, match="its rows of table aren't in")
        with refused, es.Checkpoints(place / "checkpoints") as checkpoints:
            checkpoints.restore([var, other] if durable_first else [other, var])
        assert contents(var) == wanted
        assert_same(other.export(), wanted_of_other)


def test_a_block_that_fails_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        train(var, seed=1)
        with checkpoints.checkpoint(1, [var]) as folder:
            (folder / "dense.txt").write_text("1")
        wanted = var.export()
        train(var, seed=2)
        with pytest.raises(ZeroDivisionError), checkpoints.checkpoint(2, [var]) as folder:
            (folder / "dense.txt").write_text(str(1 / 0))
        found = checkpoints.restore([var])
        assert found is not None
        assert (found.step, (found.path / "dense.txt").read_text()) == (1, "1")
        assert_same(var.export(), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000001"]


@pytest.mark.parametrize("fails", [False, True])
def test_incremental_saves_go_on_from_the_programs_own_saves(tmp_path: Path, fails: bool) -> None:
    with (
        open_variable() as var,
        open_variable() as other,
        es.Checkpoints(tmp_path / "trained") as trained,
    ):
        train(var, seed=1)
        es.save(tmp_path / "full", [var], 1)
        train(var, seed=2)
        with contextlib.suppress(ZeroDivisionError), trained.checkpoint(2, [var]):
            1 / (0 if fails else 1)
        train(var, seed=3)
        es.save_incremental(tmp_path / "increment", [var], 3)
        es.restore(tmp_path / "full", [other], [tmp_path / "increment"])
        assert_same(other.export(), var.export())


@pytest.mark.parametrize("keep", [1, 2])
def test_blocks_that_fail_take_no_checkpoint_of_a_durable_table_away(
    place: Path, keep: int
) -> None:
    with (
        make_durable_table(place) as var,
        es.Checkpoints(place / "checkpoints", keep) as checkpoints,
    ):
        train_durable(var, range(20))
        with checkpoints.checkpoint(1, [var]):
            pass
        wanted = contents(var)
        for step in range(2, 6):
            train_durable(var, range(10 * step, 10 * step + 10))
            with pytest.raises(ZeroDivisionError), checkpoints.checkpoint(step, [var]):
                1 / 0  # noqa: B018
        assert es.persisted(place / "checkpoints" / "pools") == [1]
        assert [held.number for held in var.internals.shards[0].persisted()] == [1]
    with (
        make_durable_table(place) as var,
        es.Checkpoints(place / "checkpoints", keep) as checkpoints,
    ):
        assert checkpoints.restore([var]) is not None
        assert contents(var) == wanted
        with checkpoints.checkpoint(2, [var]):  # checkpoints go on
            pass


def killed_in_a_checkpoint(folder: str) -> None:
    with open_variable() as var:
        checkpoints = es.Checkpoints(folder)
        train(var, seed=1)
        with checkpoints.checkpoint(1, [var]) as files:
            (files / "dense.txt").write_text("1")
        train(var, seed=2)
        with checkpoints.checkpoint(2, [var]) as files:
            (files / "dense.txt").write_text("2")
            os.kill(os.getpid(), 9)


def test_a_checkpoint_that_a_killed_process_began_does_not_count_and_is_removed(
    tmp_path: Path,
) -> None:
    call = f"import test_training_checkpoints as t; t.killed_in_a_checkpoint({str(tmp_path)!r})"
    ended = run_program(call)
    assert ended.returncode == -9
    with open_variable() as var, open_variable() as wanted, es.Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore([var])
        assert found is not None
        assert found.step == 1
        train(wanted, seed=1)
        assert_same(var.export(), wanted.export())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000001"]


def test_a_reader_follows_the_writer_and_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    with pytest.raises(CheckpointError, match="there is no such directory"):
        es.Checkpoints(path, read_only=True)
    with open_variable() as var, es.Checkpoints(path) as checkpoints:
        served = es.get_embedding_variable(var.name, var.dim)  # without an optimizer: weights only
        with served, es.Checkpoints(path, read_only=True) as reader:
            assert reader.restore([served]) is None
            for step in (1, 2):
                train(var, seed=step)
                with checkpoints.checkpoint(step, [var]) as folder:  # the writer goes on
                    (folder / "dense.txt").write_text(f"dense of {step}")
                before = sorted(path.rglob("*"))
                found = reader.restore([served])
                assert found is not None
                assert (found.path / "dense.txt").read_text() == f"dense of {step}"
                assert np.array_equal(served.export()["values"], var.export()["values"])
                with (
                    pytest.raises(InvalidArgumentError, match="read_only"),
                    reader.checkpoint(9, [served]),
                ):
                    pass
                reader.close()
                assert sorted(path.rglob("*")) == before


def test_a_reader_refuses_a_table_whose_restore_writes_to_its_pool(place: Path) -> None:
    path = place / "checkpoints"
    path.mkdir()
    with (
        make_durable_table(place) as table,
        es.Checkpoints(path, read_only=True) as reader,
        pytest.raises(InvalidArgumentError, match="durable pool, which its restore writes to"),
    ):
        reader.restore([table])


def test_a_file_that_was_changed_is_named(tmp_path: Path) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        with checkpoints.checkpoint(1, [var]) as folder:
            (folder / "dense.txt").write_text("1")
        found = checkpoints.newest()
        assert found is not None
        (found.path / "dense.txt").write_text("2")
        with pytest.raises(CheckpointError, match=r"dense.txt: isn't as it was written"):
            checkpoints.restore([var])


def test_a_step_that_is_not_later_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        with checkpoints.checkpoint(5, [var]):
            pass
        with (
            pytest.raises(CheckpointError, match="has a checkpoint of step 5"),
            checkpoints.checkpoint(5, [var]),
        ):
            raise AssertionError("the block has begun")


def test_links_lead_in_a_checkpoint_where_they_led_when_they_were_made(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.txt").write_text("elsewhere")
    with open_variable() as var, es.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        with checkpoints.checkpoint(1, [var]) as folder:
            (folder / "dense.txt").write_text("dense")
            (folder / "newest").symlink_to("dense.txt")
            (folder / "other").symlink_to(tmp_path / "elsewhere.txt")
        found = checkpoints.restore([var])
        assert found is not None
        assert (found.path / "newest").read_text() == "dense"
        assert (found.path / "other").read_text() == "elsewhere"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("{folder}/dense.txt", "newest: is a link into .* give a relative path"),
        ("../../../../elsewhere.txt", "newest: is a link out of .* give an absolute path"),
    ],
)
def test_links_that_would_lead_nowhere_in_a_checkpoint_are_refused(
    tmp_path: Path, link: str, message: str
) -> None:
    (tmp_path / "elsewhere.txt").write_text("elsewhere")
    with open_variable() as var, es.Checkpoints(tmp_path / "checkpoints") as checkpoints:
        with checkpoints.checkpoint(1, [var]):
            pass
        refused = pytest.raises(InvalidArgumentError, match=message)
        with refused, checkpoints.checkpoint(2, [var]) as folder:
            (folder / "dense.txt").write_text("dense")
            (folder / "newest").symlink_to(link.format(folder=folder))
            assert (folder / "newest").exists()
        found = checkpoints.restore([var])
        assert found is not None
        assert found.step == 1


def test_the_error_of_a_failed_write_says_what_it_is(tmp_path: Path) -> None:
    with open_variable() as var:
        with es.Checkpoints(tmp_path) as checkpoints:
            with (
                pytest.raises(StorageError, match=r"can't be written to: .*nowhere_yet"),
                checkpoints.checkpoint(1, [var]) as folder,
            ):
                (folder / "nowhere_yet").symlink_to("nothing")
            with (
                pytest.raises(StorageError, match=r"can't be written to: .*state"),
                checkpoints.checkpoint(1, [var]) as folder,
            ):
                folder.rmdir()
        with (
            pytest.raises(ClosedError, match="is closed; open it again"),
            checkpoints.checkpoint(1, [var]),
        ):
            raise AssertionError("the block has begun")
        former = es.Checkpoints(tmp_path)
        with (
            es.Checkpoints(tmp_path),
            pytest.raises(CheckpointError, match="another job has begun to keep"),
            former.checkpoint(1, [var]),
        ):
            raise AssertionError("the block has begun")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_in_the_block_of_another_is_refused(tmp_path: Path) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        train(var, seed=1)
        with checkpoints.checkpoint(1, [var]) as folder:
            (folder / "dense.txt").write_text("1")
            with (
                pytest.raises(InvalidArgumentError, match="in the block of a checkpoint"),
                checkpoints.checkpoint(2, [var]),
            ):
                raise AssertionError("the block has begun")
        found = checkpoints.restore([var])
        assert found is not None
        assert found.step == 1
        with checkpoints.checkpoint(2, [var]):  # checkpoints go on
            pass


def test_threads_write_their_checkpoints_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        in_block, goes_on = threading.Event(), threading.Event()

        def write(step: int) -> None:
            with checkpoints.checkpoint(step, [var]) as folder:
                in_block.set()
                assert goes_on.wait(30)
                (folder / "dense.txt").write_text(str(step))

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(write, 1)
            assert in_block.wait(30)
            in_block.clear()
            lock = ReportingLock(checkpoints._writing)
            monkeypatch.setattr(checkpoints, "_writing", lock)
            second = threads.submit(write, 2)
            lock.wait_for(second)
            assert not in_block.is_set()
            goes_on.set()
            for written in (first, second):
                written.result()
        found = checkpoints.newest()
        assert found is not None
        assert (found.step, (found.path / "dense.txt").read_text()) == (2, "2")


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_restore_waits_for_the_block_of_another_thread(
    place: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    """Otherwise it would give up the block's rows in the pool, or read files that the block
    removes."""
    if is_durable:
        skip_without_library(es.StorageType.DRAM_PMEM)

    def opened() -> contextlib.AbstractContextManager[es.EmbeddingVariable]:
        return make_durable_table(place) if is_durable else open_variable(dim=4)

    with opened() as var, ThreadPoolExecutor(1) as thread:
        checkpoints = es.Checkpoints(place / "checkpoints", keep=1)
        train_durable(var, range(10))
        with checkpoints.checkpoint(1, [var]):
            pass
        train_durable(var, range(10, 20))
        with checkpoints.checkpoint(2, [var]):
            wanted = contents(var)
            lock = ReportingLock(checkpoints._writing)
            monkeypatch.setattr(checkpoints, "_writing", lock)
            restored = thread.submit(checkpoints.restore, [var])
            lock.wait_for(restored)
            assert not restored.done()
        found = restored.result(30)
        assert found is not None
        assert found.step == 2
        assert contents(var) == wanted
        checkpoints.close()
    with opened() as var, es.Checkpoints(place / "checkpoints", keep=1) as checkpoints:
        found = checkpoints.restore([var])
        assert found is not None
        assert found.step == 2
        assert contents(var) == wanted


def test_a_restore_in_the_block_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        train(var, seed=1)
        with checkpoints.checkpoint(1, [var]):
            pass
        train(var, seed=2)
        with checkpoints.checkpoint(2, [var]):
            wanted = var.export()
            with pytest.raises(InvalidArgumentError, match="in the block of a checkpoint"):
                checkpoints.restore([var])
            assert_same(var.export(), wanted)
        found = checkpoints.restore([var])  # restores go on
        assert found is not None
        assert found.step == 2


@pytest.mark.timeout(60)  # a child that waits for its parent's lock would wait for ever
def test_a_restore_in_a_forked_child_is_refused_during_a_block_of_the_parents(
    tmp_path: Path,
) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:

        def restore() -> None:
            with (
                open_variable() as own,
                pytest.raises(InvalidArgumentError, match="was opened by the process"),
            ):
                checkpoints.restore([own])

        with checkpoints.checkpoint(1, [var]), ThreadPoolExecutor(1) as thread:
            assert thread.submit(forked, restore).result() == 0


def test_files_that_a_restore_reads_stay_though_another_process_has_taken_the_folder_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_variable() as var,
        open_variable(name="other") as other,
        es.Checkpoints(tmp_path) as reader,
    ):
        train(var, seed=1)
        with reader.checkpoint(1, [var]) as folder:
            (folder / "dense.txt").write_text("1")
        wanted = var.export()
        train(var, seed=2)
        with es.Checkpoints(tmp_path, keep=1) as writer:

            def restore_beside_a_checkpoint(checkpoint: Any, *rest: Any) -> None:
                with writer.checkpoint(2, [other]):
                    pass
                assert (checkpoint.path / "dense.txt").read_text() == "1"
                restore_tables(checkpoint, *rest)

            monkeypatch.setattr(training_checkpoints, "restore_tables", restore_beside_a_checkpoint)
            found = reader.restore([var])
            assert found is not None
            assert found.step == 1
            assert_same(var.export(), wanted)
            with writer.checkpoint(3, [other]):
                pass
            assert [path.name[-1] for path in tmp_path.glob("step-*")] == ["3"]


def test_arguments_that_cannot_work_are_named(tmp_path: Path) -> None:
    for keep in (0, 8):
        with pytest.raises(InvalidArgumentError, match="keep"):
            es.Checkpoints(tmp_path, keep)
    with es.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(InvalidArgumentError, match="variables"):
            checkpoints.restore([])
        with open_variable() as var, pytest.raises(InvalidArgumentError, match="step"):
            checkpoints.checkpoint(-1, [var]).__enter__()


def test_a_checkpoint_has_the_rows_of_the_beginning_of_its_block(tmp_path: Path) -> None:
    with open_variable() as var, es.Checkpoints(tmp_path) as checkpoints:
        train(var, seed=1)
        wanted = var.export()
        with checkpoints.checkpoint(1, [var]):
            var.apply_gradients([1], np.ones((1, 3), np.float32))
        checkpoints.restore([var])
        assert_same(var.export(), wanted)
