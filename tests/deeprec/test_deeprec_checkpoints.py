"""Savers and monitored sessions keep rows with the other variables, as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import assert_same
from program_with_tensorflow import ProgramWithTensorFlow

import embstore as es
from embstore.errors import UnsupportedError

tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("embstore.deeprec")

KEYS = [-5, 0, 3, 1 << 40]


class Model:
    """A model with rows, a dense variable and a step, all of which training changes."""

    def __init__(
        self, option: Any = None, partitions: int = 1, dim: int = 3, rate: Any = 0.1
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.set_random_seed(3)
            self.rows = tf.get_embedding_variable(
                "rows",
                dim,
                initializer=tf.ones_initializer(),
                ev_option=option,
                partitioner=tf.fixed_size_partitioner(partitions),
            )
            self.dense = tf.get_variable("dense", [dim, 1], initializer=tf.ones_initializer())
            self.step = tf.train.get_or_create_global_step()
            self.ids = tf.placeholder(tf.int64, [None])
            looked_up = tf.nn.embedding_lookup(self.rows, self.ids)
            self.looked_up = looked_up
            rate = rate(self.step) if callable(rate) else rate
            loss = tf.reduce_sum(tf.sigmoid(tf.matmul(looked_up, self.dense)))
            self.train = tf.train.AdamOptimizer(rate).minimize(loss, global_step=self.step)
            self.init = tf.global_variables_initializer()

    def saver(self, **options: Any) -> Any:
        with self.graph.as_default():
            return tf.train.Saver(**options)

    def session(self) -> Any:
        return tf.Session(graph=self.graph)

    def trained(self, session: Any, steps: int, first: int = 0) -> None:
        for i in range(first, first + steps):
            session.run(self.train, {self.ids: [KEYS[i % 4], KEYS[(i + 1) % 4], KEYS[i % 4]]})

    def state(self, session: Any) -> dict[str, Any]:
        """Returns everything that training changes or continues with."""
        dense = session.run({v.name: v for v in self.dense_variables()})
        rows = {f"rows {name}": column for name, column in self.exported(session).items()}
        return {**dense, **rows}

    def dense_variables(self) -> list[Any]:
        everything = self.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        return [variable for variable in everything if variable is not self.rows]

    def exported(self, session: Any) -> dict[str, Any]:
        columns: dict[str, Any] = self.rows.table(session).export()
        return columns


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """A checkpoint of step 5, its state, and the same program's state three steps later."""
    model = Model()
    with model.session() as session:
        session.run(model.init)
        model.trained(session, 5)
        prefix = model.saver().save(session, str(tmp_path / "model.ckpt"), global_step=model.step)
        state = model.state(session)
        model.trained(session, 3, first=5)
        yield prefix, state, model.state(session)


def option_of(kind: str, path: Path) -> Any:
    sizes = [2 * 48] if kind == "DRAM_SSDHASH" else None
    place = None if kind == "DRAM" else str(path / "tiers")
    return tf.EmbeddingVariableOption(
        storage_option=tf.StorageOption(es.StorageType[kind], place, sizes)
    )


@pytest.mark.parametrize("kind", ["DRAM", "DRAM_SSDHASH"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("initialized", [False, True])
def test_a_restored_model_continues_to_the_bit(
    tmp_path: Path, saved: Any, kind: str, partitions: int, initialized: bool
) -> None:
    prefix, state, later = saved
    model = Model(option_of(kind, tmp_path), partitions)
    with model.session() as session:
        if initialized:
            session.run(model.init)
            model.trained(session, 2)
        model.saver().restore(session, prefix)
        assert_same(model.state(session), state)
        model.trained(session, 3, first=5)
        assert_same(model.state(session), later)


def decaying(step: Any) -> Any:
    return tf.train.exponential_decay(0.1, step, 1, 0.9)


@pytest.mark.parametrize(("rate", "expected"), [(0.5, 0.5), (decaying, 0.1 * 0.9**5)])
def test_the_programs_learning_rate_applies_after_a_restore(
    saved: Any, rate: Any, expected: float
) -> None:
    prefix, *_ = saved
    model = Model(rate=rate)
    with model.session() as session:
        model.saver().restore(session, prefix)
        model.trained(session, 1)
        assert model.rows.table(session).learning_rate == pytest.approx(expected)


def test_tensorflows_own_saver_says_that_it_loses_rows(tmp_path: Path) -> None:
    model = Model()
    own: Any = tf.train.Saver.__mro__[1]
    with model.graph.as_default():
        saver = own()
    with model.session() as session:
        session.run(model.init)
        with pytest.raises(tf.errors.OpError, match="rows aren't saved by this saver"):
            saver.save(session, str(tmp_path / "model"))


def test_another_dim_gets_initial_values(saved: Any) -> None:
    prefix, state, _ = saved
    model = Model(dim=5)
    with model.session() as session:
        model.saver(var_list=[model.rows]).restore(session, prefix)
        exported = model.exported(session)
    assert (exported["values"][:, :3] == state["rows values"]).all()
    assert (exported["values"][:, 3:] == 1).all()


def rows_folders(path: Path) -> set[str]:
    return {entry.name.rpartition(".rows-")[0] for entry in path.glob("*.rows-*")}


def test_rows_are_deleted_with_their_checkpoint(tmp_path: Path) -> None:
    model = Model()
    saver = model.saver(max_to_keep=2)
    with model.session() as session:
        session.run(model.init)
        for step in range(4):
            model.trained(session, 1)
            saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
            kept = {Path(path).name for path in saver.last_checkpoints}
            assert rows_folders(tmp_path) == kept
    assert kept == {"model.ckpt-2", "model.ckpt-3"}
    again = model.saver(max_to_keep=2)
    again.recover_last_checkpoints([str(tmp_path / name) for name in sorted(kept)])
    with model.session() as session:
        again.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
        again.save(session, str(tmp_path / "model.ckpt"), global_step=4)
    assert rows_folders(tmp_path) == {"model.ckpt-3", "model.ckpt-4"}


def test_a_checkpoint_with_the_same_name_replaces_the_earlier_one(tmp_path: Path) -> None:
    model = Model()
    saver = model.saver()
    with model.session() as session:
        session.run(model.init)
        for _ in range(3):
            model.trained(session, 1)
            path = saver.save(session, str(tmp_path / "model"))
        state = model.state(session)
    assert path == str(tmp_path / "model")
    assert len(list(tmp_path.glob("model.rows-*"))) == 1
    with model.session() as session:
        saver.restore(session, path)
        assert_same(model.state(session), state)


def test_a_checkpoint_may_be_moved_with_its_rows(tmp_path: Path, saved: Any) -> None:
    prefix, state, _ = saved
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for entry in tmp_path.glob("model.ckpt-5*"):
        shutil.move(entry, elsewhere)
    model = Model()
    with model.session() as session:
        model.saver().restore(session, str(elsewhere / Path(prefix).name))
        assert_same(model.state(session), state)


def test_paths_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Model()
    with model.session() as session:
        session.run(model.init)
        model.trained(session, 2)
        state = model.state(session)
        assert model.saver().save(session, "model", 2) == "model-2"
        model.trained(session, 2)
        model.saver().restore(session, "model-2")
        assert_same(model.state(session), state)


def test_steps_are_padded_as_tensorflow_pads_them(tmp_path: Path) -> None:
    model = Model()
    with model.session() as session:
        session.run(model.init)
        path = model.saver(pad_step_number=True).save(session, str(tmp_path / "model"), 7)
    assert path == str(tmp_path / "model-00000007")
    assert rows_folders(tmp_path) == {"model-00000007"}


@pytest.mark.parametrize("damage", ["missing", "truncated", "another", "outside"])
def test_damaged_rows_are_refused_and_nothing_changes(
    tmp_path: Path, saved: Any, damage: str
) -> None:
    prefix, *_ = saved
    (folder,) = tmp_path.glob("model.ckpt-5.rows-*")
    if damage == "missing":
        shutil.rmtree(folder)
    elif damage == "truncated":
        (file,) = folder.rglob("*.rows")
        os.truncate(file, file.stat().st_size - 1)
    else:
        names = {"another": b"other.rows-00000000", "outside": b"../a.rows-00000000"}
        with tf.Graph().as_default(), tf.Session() as session:
            plain = {
                "rows": tf.constant(names[damage]),
                **{
                    name: tf.constant(tf.train.load_variable(prefix, name))
                    for name, _ in tf.train.list_variables(prefix)
                    if name != "rows"
                },
            }
            session.run(
                tf.raw_ops.SaveV2(
                    prefix=prefix,
                    tensor_names=list(plain),
                    shape_and_slices=[""] * len(plain),
                    tensors=list(plain.values()),
                )
            )
    model = Model()
    with model.session() as session:
        session.run(model.init)
        model.trained(session, 2)
        before = model.state(session)
        with pytest.raises(es.errors.CheckpointError, match=r"model.ckpt-5|other.rows"):
            model.saver().restore(session, prefix)
        assert_same(model.state(session), before)


def test_a_checkpoint_without_the_variable_says_so(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("rows", [3])
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "plain"))
    model = Model()
    with (
        model.session() as session,
        pytest.raises(es.errors.CheckpointError, match="the entry rows is of an ordinary variable"),
    ):
        model.saver().restore(session, path)


def test_a_saver_of_dense_variables_only_saves_no_rows(tmp_path: Path) -> None:
    model = Model()
    with model.session() as session:
        session.run(model.init)
        model.saver(var_list=[model.dense]).save(session, str(tmp_path / "dense"))
    assert not rows_folders(tmp_path)


def test_rows_are_not_saved_under_another_name() -> None:
    model = Model()
    with pytest.raises(es.errors.InvalidArgumentError, match="var_list names rows 'other'"):
        model.saver(var_list={"other": model.rows})


def test_an_uninitialized_variable_is_not_saved(tmp_path: Path) -> None:
    model = Model()
    with (
        model.session() as session,
        pytest.raises(es.errors.InvalidArgumentError, match="rows isn't initialized"),
    ):
        model.saver().save(session, str(tmp_path / "model"))


def test_a_save_evicts_by_the_global_step(tmp_path: Path) -> None:
    option = tf.EmbeddingVariableOption(evict_option=tf.GlobalStepEvict(steps_to_live=2))
    model = Model(option)
    with model.session() as session:
        session.run(model.init)
        for ids in ([1, 2], [2], [2], [2, 3]):
            session.run(model.train, {model.ids: ids})
        model.saver().save(session, str(tmp_path / "a"), global_step=model.step)
        assert model.exported(session)["keys"].tolist() == [2, 3]  # at step 4; 1 is of step 0
        model.saver().save(session, str(tmp_path / "b"))  # by the graph's own step
        assert model.exported(session)["keys"].tolist() == [2, 3]
        model.saver().save(session, str(tmp_path / "c"), global_step=6)
        assert model.exported(session)["keys"].tolist() == []


@pytest.mark.timeout(300)
def test_a_kill_at_any_moment_leaves_a_checkpoint_of_one_step(
    tmp_path: Path, program_with_tensorflow: ProgramWithTensorFlow
) -> None:
    """After each kill, the rows of the newest checkpoint are those of its dense variables."""
    random = np.random.RandomState(4)
    expected = Model()
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        child = program_with_tensorflow.begin_training(folder / "m")
        saved = program_with_tensorflow.saved_steps()
        assert 3 in saved, "it ended by itself"
        time.sleep(random.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        told = max(saved, default=3)
        model = Model()
        with model.session() as session, expected.session() as plain:
            model.saver().restore(session, tf.train.latest_checkpoint(str(folder)))
            step = int(session.run(model.step))
            assert step >= told
            plain.run(expected.init)
            expected.trained(plain, step)
            assert_same(model.state(session), expected.state(plain))
            # The next save of that name removes what the kill left half-done.
            model.trained(session, 1, first=step)
            model.saver().save(session, str(folder / "m"), global_step=step + 1)
            assert len(list(folder.glob(f"m-{step + 1}.rows-*"))) == 1


def monitored(path: Path, **options: Any) -> Any:
    return tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(path), log_step_count_steps=None, **options
    )


class TrainingFailedError(Exception):
    pass


def train_and_fail(model: Model, monitored: Any, steps: int, state: dict[str, Any]) -> None:
    """Trains so slowly that a hook with a period of 10 ms acts after each step. The session fails,
    so that the hook does nothing at the end.
    """
    with monitored as session:
        for i in range(steps):
            model.trained(session, 1, first=i)
            time.sleep(0.02)
        session.run(model.step)
        state.update(model.state(session._tf_sess()))
        raise TrainingFailedError


def test_a_monitored_session_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    expected = Model()
    with expected.session() as plain:
        plain.run(expected.init)
        expected.trained(plain, 7)
        state = expected.state(plain)
    for steps in (3, 4):
        model = Model()
        with (
            model.graph.as_default(),
            monitored(tmp_path, save_checkpoint_steps=2) as session,
        ):
            done = session.run(model.step)
            model.trained(session, steps, first=done)
            if done:
                assert_same(model.state(session._tf_sess()), state)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-7")


def test_increments_restore_changes_after_the_last_full_checkpoint(tmp_path: Path) -> None:
    """A session that fails, and so saves nothing at its end, is continued from its increments."""
    model = Model()
    folder = tmp_path / ".incremental_checkpoint"
    state: dict[str, Any] = {}
    with model.graph.as_default():
        session = monitored(
            tmp_path, save_checkpoint_secs=1000, save_incremental_checkpoint_secs=0.01
        )
        with pytest.raises(TrainingFailedError):
            train_and_fail(model, session, 6, state)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-0")
    assert len(list(folder.rglob("*.index"))) >= 3

    model = Model()
    with (
        model.graph.as_default(),
        monitored(tmp_path, save_incremental_checkpoint_secs=1000) as session,
    ):
        assert session.run(model.step) == 6
        assert_same(model.state(session._tf_sess()), state)

    # The checkpoint before the increments, without and with them.
    first = str(tmp_path / "model.ckpt-0")
    for with_increments, step in ((False, 0), (True, 6)):
        model = Model()
        with model.session() as plain:
            model.saver(incremental_save_restore=with_increments).restore(plain, first)
            assert plain.run(model.step) == step
            assert len(model.exported(plain)["keys"]) == (4 if step else 0)


def test_an_increment_has_only_the_rows_that_changed(tmp_path: Path) -> None:
    model = Model()
    saver = model.saver(max_to_keep=1, incremental_save_restore=True)
    path = str(tmp_path / "model")
    with model.session() as session:
        session.run(model.init)
        session.run(model.train, {model.ids: range(2000)})
        saver.save(session, path, 1)
        session.run(model.train, {model.ids: [7]})
        increment = saver.incremental_save(session, path, 2)
        state = model.state(session)

        def size(prefix: str) -> int:
            folder = Path(prefix).parent
            names = folder.glob(f"{Path(prefix).name}.rows-*/**/*.rows")
            return sum(entry.stat().st_size for entry in names)

        assert size(increment) < size(f"{path}-1") / 20
        session.run(model.train, {model.ids: [8]})
        saver.restore(session, f"{path}-1")
        assert_same(model.state(session), state)

        # Training continues from there, and increments are deleted with the checkpoint that they
        # follow.
        session.run(model.train, {model.ids: [9]})
        saver.incremental_save(session, path, 3)
        state = model.state(session)
        saver.restore(session, f"{path}-1")
        assert_same(model.state(session), state)
        saver.save(session, path, 4)
        assert not list(tmp_path.rglob("incr_model*"))


def test_increments_are_restored_in_the_order_of_their_steps(tmp_path: Path) -> None:
    model = Model()
    saver = model.saver(incremental_save_restore=True)
    path = str(tmp_path / "model")
    with model.session() as session:
        session.run(model.init)
        saver.save(session, path, 8)
        for step in (9, 10, 100):  # their alphabetical order differs
            model.trained(session, 1, first=step)
            saver.incremental_save(session, path, step)
        state = model.state(session)
        model.trained(session, 1)
        saver.restore(session, f"{path}-8")
        assert_same(model.state(session), state)


def test_a_second_increment_of_a_step_is_refused(tmp_path: Path) -> None:
    model = Model()
    saver = model.saver(incremental_save_restore=True)
    path = str(tmp_path / "model")
    with model.session() as session:
        session.run(model.init)
        saver.save(session, path, 1)
        model.trained(session, 1)
        saver.incremental_save(session, path, 2)
        state = model.state(session)
        model.trained(session, 1)
        with pytest.raises(es.errors.InvalidArgumentError, match=r"global_step: .* of step 2 al"):
            saver.incremental_save(session, path, 2)
        saver.restore(session, f"{path}-1")
        assert_same(model.state(session), state)


def test_no_increment_follows_increments_that_were_left_out(tmp_path: Path) -> None:
    model = Model()
    path = str(tmp_path / "model")
    with model.session() as session:
        session.run(model.init)
        saver = model.saver()
        saver.save(session, path, 1)
        model.trained(session, 1)
        saver.incremental_save(session, path, 2)
        left_out = model.state(session)
        saver.restore(session, f"{path}-1")
        model.trained(session, 3)
        assert not saver.follows_last_save(session, path)
        model.saver(incremental_save_restore=True).restore(session, f"{path}-1")
        assert_same(model.state(session), left_out)


def test_a_session_whose_rows_another_saver_saved_makes_a_full_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    model = Model()
    other = model.saver()
    state: dict[str, Any] = {}
    with model.graph.as_default():
        session = monitored(
            tmp_path / "checkpoints",
            save_checkpoint_secs=1000,
            save_incremental_checkpoint_secs=0.01,
        )
        other.save(session._tf_sess(), str(tmp_path / "best"))
        with pytest.raises(TrainingFailedError):
            train_and_fail(model, session, 3, state)
    assert not tf.train.latest_checkpoint(str(tmp_path / "checkpoints")).endswith("ckpt-0")
    model = Model()
    with (
        model.graph.as_default(),
        monitored(tmp_path / "checkpoints", save_incremental_checkpoint_secs=1000) as session,
    ):
        assert_same(model.state(session._tf_sess()), state)


def test_without_rows_every_checkpoint_is_a_full_one(tmp_path: Path) -> None:
    """DeepRec's page on incremental checkpoints has this program, with TensorFlow's variables."""
    with tf.Graph().as_default():
        weights = tf.get_variable("w", [30, 4], partitioner=tf.fixed_size_partitioner(4))
        ids = tf.placeholder(tf.int64, name="ids")
        loss = tf.reduce_sum(tf.multiply(tf.nn.embedding_lookup(weights, ids), 2.0))
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdagradOptimizer(0.1, initial_accumulator_value=1)
        train = optimizer.apply_gradients(optimizer.compute_gradients(loss), global_step=step)
        with monitored(
            tmp_path, save_checkpoint_secs=60, save_incremental_checkpoint_secs=0.01
        ) as session:
            for i in range(3):
                session.run([step, train, loss], feed_dict={"ids:0": i % 10})
                time.sleep(0.02)
            session.run(step, feed_dict={"ids:0": 0})
    assert len(list(tmp_path.glob("model.ckpt-*.index"))) >= 3
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-3")
    assert not (tmp_path / ".incremental_checkpoint").exists()


def test_an_increment_follows_the_last_save_or_is_refused(tmp_path: Path) -> None:
    model = Model()
    one, other = model.saver(), model.saver()
    path = str(tmp_path / "model")
    with model.session() as session:
        session.run(model.init)
        assert not one.follows_last_save(session, path)
        with pytest.raises(es.errors.InvalidArgumentError, match=r"call save\(\) first"):
            one.incremental_save(session, path, 1)
        one.save(session, path, 1)
        assert one.follows_last_save(session, path)
        other.save(session, str(tmp_path / "best"), 1)
        assert not one.follows_last_save(session, path)
        with pytest.raises(es.errors.InvalidArgumentError, match=r"call save\(\) first"):
            one.incremental_save(session, path, 2)
        assert other.follows_last_save(session, str(tmp_path / "best"))


def test_a_save_that_fails_keeps_the_previous_one_and_leaves_no_files(tmp_path: Path) -> None:
    model = Model()
    saver = model.saver()
    path = str(tmp_path / "model")
    with model.session() as session:
        session.run(model.init)
        model.trained(session, 2)
        saver.save(session, path)
        state = model.state(session)
        kept = set(tmp_path.iterdir())
        model.trained(session, 2)
        model.rows.table(session).close()
        with pytest.raises(es.errors.ClosedError):
            saver.save(session, path)
        assert set(tmp_path.iterdir()) == kept
    model = Model()
    with model.session() as session:
        model.saver().restore(session, path)
        assert_same(model.state(session), state)


def test_a_saver_hook_makes_increments_too(tmp_path: Path) -> None:
    model = Model()
    with model.graph.as_default():
        scaffold = tf.train.Scaffold(
            saver=tf.train.Saver(sharded=True, incremental_save_restore=True),
            incremental_save_restore=True,
        )
        hook = tf.train.CheckpointSaverHook(
            str(tmp_path), save_secs=1000, scaffold=scaffold, incremental_save_secs=0.01
        )
        creator = tf.train.ChiefSessionCreator(scaffold, checkpoint_dir=str(tmp_path))
        session = tf.train.MonitoredSession(creator, hooks=[hook])
        with pytest.raises(TrainingFailedError):
            train_and_fail(model, session, 3, {})
    model = Model()
    with (
        model.graph.as_default(),
        monitored(tmp_path, scaffold=tf.train.Scaffold(incremental_save_restore=True)) as session,
    ):
        assert session.run(model.step) == 3


@pytest.mark.parametrize("lack", ["another shape", "another type", "no such variable"])
def test_a_restore_that_fails_for_a_dense_variable_leaves_the_rows(
    tmp_path: Path, lack: str
) -> None:
    saved, other = Model(), tf.Graph()
    with saved.session() as session:
        session.run(saved.init)
        saved.trained(session, 3)
        path = saved.saver().save(session, str(tmp_path / "model"))
    with other.as_default():
        rows = tf.get_embedding_variable("rows", 3, initializer=tf.zeros_initializer())
        name = "more" if lack == "no such variable" else "dense"
        shape = [4, 1] if lack == "another shape" else [3, 1]
        kind = tf.float64 if lack == "another type" else tf.float32
        tf.get_variable(name, shape, kind)
        saver, init = tf.train.Saver(), tf.global_variables_initializer()
    with tf.Session(graph=other) as session:
        session.run(init)
        with pytest.raises(tf.errors.OpError):
            saver.restore(session, path)
        assert session.run(rows.total_count()).tolist() == [0, 3]


def test_a_saver_of_an_imported_graph_says_that_it_has_no_rows(tmp_path: Path) -> None:
    model = Model()
    with model.session() as session:
        session.run(model.init)
        path = model.saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default():
        imported = tf.train.import_meta_graph(f"{path}.meta")
        session = tf.Session()
        with pytest.raises(UnsupportedError, match=r"imported .* build the graph by get_embedding"):
            imported.restore(session, path)
        session.close()
        assert session._closed


@pytest.mark.parametrize("by", ["map", "pattern"])
def test_warm_starts_refuse_embedding_variables(by: str, tmp_path: Path) -> None:
    model = Model()
    with model.session() as session:
        session.run(model.init)
        model.trained(session, 3)
        dense = session.run(model.dense)
        path = model.saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.variable_scope("of"):
        rows = tf.get_embedding_variable("rows", 3)
        weights = tf.get_variable("dense", [3, 1])
        for target in (rows, [rows], "of/rows", "of/", "/"):
            with pytest.raises(UnsupportedError, match=r"assignment_map: of/rows is an embedd"):
                tf.train.init_from_checkpoint(path, {"rows": target})
        for target in (".*", None, "of/r", [rows], ["of/rows"]):
            with pytest.raises(UnsupportedError, match=r"vars_to_warm_start: of/rows is an embedd"):
                tf.train.warm_start(path, target)
        if by == "map":
            tf.train.init_from_checkpoint(path, {"dense": "of/dense"})
        else:
            tf.train.warm_start(path, "of/dense", None, {"of/dense": "dense"})
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            np.testing.assert_array_equal(session.run(weights), dense)
