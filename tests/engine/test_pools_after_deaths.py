"""A durable pool gives up only checkpoints that never counted. No call removes foreign files."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from durable_table import contents, make_durable_table, make_table, rows_in_dram_after, train
from programs import run_function

import embstore as es
from embstore.checkpoint.persist.checkpoints import CheckpointDirectory
from embstore.checkpoint.training.directory import TrainingDirectory
from embstore.errors import CheckpointError, InvalidArgumentError, StorageError
from embstore.table.shard import LocalShard

# --- Programs in processes of their own


def die_before_the_list_has_it(place: str, lists: str) -> None:
    variable = make_durable_table(Path(place))
    train(variable, range(10))
    with patch.object(CheckpointDirectory, "publish", _die):
        es.persist([variable], lists)


def die_before_another_list_has_it(place: str, lists: str, others: str) -> None:
    """Restores two tables from `lists`, persists the first of them to `others`, and dies."""
    variables = [make_durable_table(Path(place)), make_durable_table(Path(place), name="other")]
    es.restore_persisted(variables, lists)
    with patch.object(CheckpointDirectory, "publish", _die):
        es.persist(variables[:1], others)


def die_before_the_step_has_its_name(place: str, folder: str) -> None:
    variable = make_durable_table(Path(place))
    checkpoints = es.Checkpoints(folder)
    checkpoints.restore([variable])
    train(variable, range(10))
    with (
        patch.object(TrainingDirectory, "publish", _die),
        checkpoints.checkpoint(1, [variable]),
    ):
        pass


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(function: str, *arguments: Path | str) -> None:
    call = f"{function}({', '.join(repr(str(argument)) for argument in arguments)})"
    with pytest.raises(AssertionError, match="signal 9"):
        run_function("test_pools_after_deaths", call)


def persisted_once(place: Path, lists: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], lists)


def assert_restored(place: Path, lists: Path, steps: int = 10) -> None:
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], lists)
        assert contents(variable) == rows_in_dram_after(steps)


def trained_in_steps(place: Path, folder: Path, steps: int = 1) -> None:
    with make_durable_table(place) as variable, es.Checkpoints(folder) as checkpoints:
        for step in range(1, steps + 1):
            train(variable, range(step * 10 - 10, step * 10))
            with checkpoints.checkpoint(step, [variable]):
                pass


# --- Checkpoints that never counted


def test_a_first_checkpoint_that_was_never_listed_does_not_count(place: Path) -> None:
    killed("die_before_the_list_has_it", place, place / "lists")
    with make_durable_table(place, restores=False) as variable:
        train(variable, range(3))
        assert contents(variable) == rows_in_dram_after(3)


def test_a_training_that_died_before_its_first_step_had_its_name_starts_over(place: Path) -> None:
    killed("die_before_the_step_has_its_name", place, place / "run")
    assert es.persisted(place / "run" / "pools") == [1]
    with make_durable_table(place) as variable, es.Checkpoints(place / "run") as checkpoints:
        assert checkpoints.restore([variable]) is None
        assert es.persisted(place / "run" / "pools") == []
        train(variable, range(3))
        assert contents(variable) == rows_in_dram_after(3)
        with checkpoints.checkpoint(1, [variable]):
            pass
    with make_durable_table(place) as variable, es.Checkpoints(place / "run") as checkpoints:
        assert checkpoints.restore([variable]) is not None
        assert contents(variable) == rows_in_dram_after(3)


# --- Checkpoints that counted, and can't be found now


@pytest.mark.parametrize("left", ["nothing", "an empty mount point"])
def test_checkpoints_stay_while_the_medium_that_lists_them_is_away(place: Path, left: str) -> None:
    lists = place / "medium" / "lists"
    lists.parent.mkdir()
    persisted_once(place, lists)
    lists.parent.rename(place / "unmounted")
    if left != "nothing":
        lists.parent.mkdir()
    for _ in range(3):
        refused = pytest.raises(CheckpointError, match="lists: there is no such directory")
        with make_durable_table(place) as variable, refused:
            es.restore_persisted([variable], lists)
        assert not lists.exists(), "a restore makes nothing"
    shutil.rmtree(lists.parent, ignore_errors=True)
    (place / "unmounted").rename(lists.parent)
    assert_restored(place, lists)


def test_a_trainings_checkpoints_stay_while_its_medium_is_away(place: Path) -> None:
    run = place / "medium" / "run"
    run.parent.mkdir()
    trained_in_steps(place, run)
    run.parent.rename(place / "unmounted")
    run.parent.mkdir()
    for _ in range(2):
        with make_durable_table(place) as variable, es.Checkpoints(run) as checkpoints:
            assert checkpoints.restore([variable]) is None
            with pytest.raises(StorageError, match="an earlier run"):
                train(variable, range(3))
    shutil.rmtree(run.parent)
    (place / "unmounted").rename(run.parent)
    with make_durable_table(place) as variable, es.Checkpoints(run) as checkpoints:
        assert checkpoints.restore([variable]) is not None
        assert contents(variable) == rows_in_dram_after(10)


def test_a_trainings_checkpoint_stays_although_its_only_step_was_moved_away(place: Path) -> None:
    trained_in_steps(place, place / "run")
    step = place / "run" / "step-000000000001"
    step.rename(place / "elsewhere")
    with make_durable_table(place) as variable, es.Checkpoints(place / "run") as checkpoints:
        assert checkpoints.restore([variable]) is None
    (place / "elsewhere").rename(step)
    with make_durable_table(place) as variable, es.Checkpoints(place / "run") as checkpoints:
        assert checkpoints.restore([variable]) is not None
        assert contents(variable) == rows_in_dram_after(10)


def test_a_run_that_was_moved_keeps_its_checkpoints_from_one_that_began_in_its_place(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    persisted_once(run, run / "lists")
    run.rename(tmp_path / "older")
    run.mkdir()
    killed("die_before_the_list_has_it", run, run / "lists")
    assert_restored(tmp_path / "older", tmp_path / "older" / "lists")


def test_a_first_checkpoint_in_another_directory_that_fails_leaves_those_before(
    place: Path,
) -> None:
    with make_durable_table(place) as variable, make_durable_table(place, name="other") as other:
        train(variable, range(10))
        es.persist([variable, other], place / "lists")
    killed("die_before_another_list_has_it", place, place / "lists", place / "others")
    with make_durable_table(place) as variable, make_durable_table(place, name="other") as other:
        es.restore_persisted([variable, other], place / "lists")
        assert contents(variable) == rows_in_dram_after(10)


# --- Files that aren't a training's


def test_a_training_without_a_checkpoint_leaves_the_files_that_it_finds(place: Path) -> None:
    run = place / "run"
    (run / "pools").mkdir(parents=True)
    (run / "pools" / "notes.txt").touch()
    persisted_once(place, run / "pools")
    with make_table("another") as another, es.Checkpoints(run) as checkpoints:
        assert checkpoints.restore([another]) is None
    assert (run / "pools" / "notes.txt").exists()
    assert_restored(place, run / "pools")


def test_pools_may_lie_where_a_training_lists_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with make_durable_table(run / "pools") as variable, es.Checkpoints(run) as checkpoints:
        assert checkpoints.restore([variable]) is None
        train(variable, range(10))
        with checkpoints.checkpoint(1, [variable]):
            pass
    with make_durable_table(run / "pools") as variable, es.Checkpoints(run) as checkpoints:
        assert checkpoints.restore([variable]) is not None
        assert contents(variable) == rows_in_dram_after(10)


# --- Restores that meet something else


def test_a_damaged_older_checkpoint_does_not_keep_the_newest_from_its_restore(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make_durable_table(place) as variable:
        for step in range(3):
            train(variable, range(step * 10, step * 10 + 10))
            es.persist([variable], place / "lists", keep=3)
    os.truncate(place / "lists" / "checkpoint-00000001" / "manifest.json", 50)
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], place / "lists")
        assert "checkpoint-00000001" in caplog.text
        assert contents(variable) == rows_in_dram_after(30)
        train(variable, range(30, 40))
        es.persist([variable], place / "lists")
    assert_restored(place, place / "lists", 40)


def test_a_step_whose_pool_checkpoint_is_another_one_is_refused(place: Path) -> None:
    trained_in_steps(place, place / "run", steps=2)
    newest = place / "run" / "pools" / "checkpoint-00000002"
    shutil.rmtree(newest)
    shutil.copytree(place / "run" / "pools" / "checkpoint-00000001", newest)
    with (
        make_durable_table(place) as variable,
        es.Checkpoints(place / "run") as checkpoints,
        pytest.raises(CheckpointError, match="checkpoint-00000002: is another checkpoint"),
    ):
        checkpoints.restore([variable])


def test_ctrl_c_leaves_no_checkpoint_that_is_pending_for_ever(place: Path) -> None:
    begin = LocalShard.begin_persist

    def begin_and_interrupt(*arguments: object) -> object:
        begun = begin(*arguments)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)
        return begun

    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "lists")
        for step in range(20):  # more than a pool has room for
            train(variable, range(10 + step, 11 + step))
            with (
                patch.object(LocalShard, "begin_persist", begin_and_interrupt),
                pytest.raises(KeyboardInterrupt),
            ):
                es.persist([variable], place / "lists")
        train(variable, range(30, 40))
        es.persist([variable], place / "lists")
        es.restore_persisted([variable], place / "lists")
        assert contents(variable) == rows_in_dram_after(40)


def test_a_refused_directory_leaves_tables_together(place: Path) -> None:
    missing = place / "no" / "such"
    with make_durable_table(place, name="a") as a, make_durable_table(place, name="b") as b:
        for variable in (a, b):
            train(variable, range(10))
        es.persist([a, b], place / "lists")
        with pytest.raises(StorageError, match="no doesn't exist"):
            es.persist([a], missing)
        with pytest.raises(CheckpointError, match="there is no such directory"):
            es.restore_persisted([a], missing)
        es.persist([a, b], place / "lists")
        es.restore_persisted([a, b], place / "lists")


def test_tables_of_one_checkpoint_must_be_restored_together(
    place: Path,
) -> None:
    with make_durable_table(place, name="a") as a, make_durable_table(place, name="b") as b:
        for variable in (a, b):
            train(variable, range(10))
        es.persist([a, b], place / "lists")
    with make_durable_table(place, name="a") as a, make_durable_table(place, name="b") as b:
        es.restore_persisted([a], place / "lists")
        with pytest.raises(InvalidArgumentError, match=r"variables: a of this process .*together"):
            es.restore_persisted([b], place / "lists")
        es.restore_persisted([a, b], place / "lists")
        for variable in (a, b):
            assert contents(variable) == rows_in_dram_after(10)
            train(variable, range(10, 12))
        es.persist([a, b], place / "lists")
    with make_durable_table(place, name="a") as a, make_durable_table(place, name="b") as b:
        es.restore_persisted([a, b], place / "lists")
        assert contents(a) == contents(b) == rows_in_dram_after(12)


def test_a_pool_whose_checkpoints_were_given_up_begins_as_a_new_one(place: Path) -> None:
    persisted_once(place, place / "lists")
    with make_durable_table(place) as variable:
        es.discard_persisted([variable])
    killed("die_before_the_list_has_it", place, place / "others")
    with make_durable_table(place, restores=False) as variable:
        train(variable, range(3))
        assert contents(variable) == rows_in_dram_after(3)


def test_a_restore_of_a_save_changes_no_table_if_another_awaits_its_own(place: Path) -> None:
    with make_table("table") as saved, make_table("other") as other:
        for variable in (saved, other):
            train(variable, range(5))
        es.save(place / "saved", [other, saved])
        persisted_once(place, place / "lists")
        train(other, range(5, 9))
        before = contents(other)
        with make_durable_table(place) as awaiting:
            with pytest.raises(StorageError, match="pool of table holds checkpoints"):
                es.restore(place / "saved", [other, awaiting])
            assert contents(other) == before
    assert_restored(place, place / "lists")


def test_files_in_the_place_of_checkpoints_are_left_alone(place: Path) -> None:
    persisted_once(place, place / "lists")
    (place / "lists" / "checkpoint-00000005").touch()
    (place / "lists" / ".checkpoint-00000007.removed").touch()
    for steps in (10, 11):
        assert_restored(place, place / "lists", steps)
        with make_durable_table(place) as variable:
            es.restore_persisted([variable], place / "lists")
            train(variable, range(steps, steps + 1))
            es.persist([variable], place / "lists")
    assert (place / "lists" / "checkpoint-00000005").is_file()


@pytest.mark.timeout(60)
def test_an_entry_that_is_no_save_is_neither_waited_for_nor_taken_for_one(tmp_path: Path) -> None:
    with make_table("table") as variable:
        (tmp_path / "saves").mkdir()
        (tmp_path / "saves" / "save-00000001").symlink_to("/nowhere")
        (tmp_path / "saves" / "save-00000002").touch()
        with pytest.raises(CheckpointError, match="holds no save"):
            es.restore(tmp_path / "saves", [variable])
        with (
            es.Checkpoints(tmp_path / "run") as checkpoints,
            pytest.raises(InvalidArgumentError, match="fifo: is neither a file nor a folder"),
            checkpoints.checkpoint(1, [variable]) as folder,
        ):
            os.mkfifo(folder / "fifo")
        assert np.array_equal(variable.export()["keys"], [])
