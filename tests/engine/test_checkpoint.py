"""A restore brings back what was saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_variables import files_of, open_variable, train
from engine_storage import STACKS, TIERED_STACKS, Stack
from exports import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_partition import partitions_of

import embstore as es
from embstore.errors import (
    CheckpointError,
    ClosedError,
    InvalidArgumentError,
    StorageError,
    StoreFullError,
)

ANY_TMP_PATH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=25, deadline=None, suppress_health_check=ANY_TMP_PATH)
@given(
    stack=st.sampled_from(STACKS),
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    partitions=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_another_dim_cuts_columns_or_gives_new_ones_their_initial_values(
    tmp_path_factory: pytest.TempPathFactory,
    stack: Stack,
    dims: tuple[int, int],
    partitions: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("saved")
    optimizer = es.optimizers.Ftrl(0.1, initial_accumulator_value=0.25)
    with (
        open_variable(dim=dims[0], optimizer=optimizer) as var,
        open_variable(stack, dim=dims[1], optimizer=optimizer, partition_num=partitions) as other,
    ):
        train(var, seed)
        es.save(path, [var], 5)
        initial = other.lookup(var.export()["keys"], train=True)
        es.restore(path, [other])
        saved, restored = var.export(), other.export()
        common = min(dims)
        for column in ("keys", "freqs", "versions"):
            np.testing.assert_array_equal(restored[column], saved[column])
        for column in ("values", *optimizer.slots):
            np.testing.assert_array_equal(restored[column][:, :common], saved[column][:, :common])
        np.testing.assert_array_equal(restored["values"][:, common:], initial[:, common:])
        assert (restored["accum"][:, common:] == 0.25).all()
        assert (restored["linear"][:, common:] == 0).all()


def test_an_incremental_save_has_only_the_rows_that_were_trained_since(tmp_path: Path) -> None:
    grads = np.ones((3, 3), np.float32)
    with open_variable() as var, open_variable(partition_num=2) as other:
        var.apply_gradients([1, 2, 3], grads)
        es.save(tmp_path / "full", [var], 1)
        var.apply_gradients([3, 4, 4], grads)
        var.lookup([1, 2])
        es.save_incremental(tmp_path / "a", [var], 2)
        es.save_incremental(tmp_path / "b", [var], 3)
        full, a, b = (files_of(tmp_path / name)[1].stat().st_size for name in ("full", "a", "b"))
        row = 40 + 4 * 3 * 2
        initial_rows = 32 + 4096 * 4 * 3  # only the full save has them
        assert full - a == row + initial_rows
        assert a - b == 2 * row + 32  # and the header of a block
        # After a restore, a variable's increments follow the saves that it was restored from.
        es.restore(tmp_path / "full", [other], incremental=[tmp_path / "a", tmp_path / "b"])
        other.apply_gradients([5, 5, 5], grads)
        es.save_incremental(tmp_path / "c", [other], 4)
        chain = [tmp_path / name for name in "abc"]
        es.restore(tmp_path / "full", [var], incremental=chain)
        assert_same(var.export(), other.export())


def test_a_save_that_failed_takes_nothing_from_the_next_increment(tmp_path: Path) -> None:
    grads = np.ones((2, 3), np.float32)
    with open_variable(evict=es.GlobalStepEvict(10)) as var, open_variable() as other:
        var.apply_gradients([1, 2], grads, global_step=1)
        es.save(tmp_path / "full", [var], 1)
        var.apply_gradients([2, 3], grads, global_step=12)
        with pytest.raises(StorageError, match="nowhere doesn't exist"):
            es.save(tmp_path / "nowhere" / "else", [var], 12)
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="file is a file; give a dir"):
            es.save_incremental(tmp_path / "file", [var], 12)
        es.save_incremental(tmp_path / "increment", [var], 12)
        assert var.export()["keys"].tolist() == [2, 3]
        es.restore(tmp_path / "full", [other], incremental=[tmp_path / "increment"])
        assert_same(other.export(), var.export())


def test_without_a_step_each_variable_evicts_by_its_own_count_of_updates(tmp_path: Path) -> None:
    option = es.GlobalStepEvict(5)
    grads = np.ones((1, 3), np.float32)
    with (
        open_variable(evict=option) as often,
        open_variable(name="seldom", evict=option) as seldom,
    ):
        for step in range(20):
            often.apply_gradients([step], grads)
        for id in range(3):
            seldom.apply_gradients([id], grads)
        es.save(tmp_path / "save", [often, seldom])
        assert often.export()["keys"].tolist() == [15, 16, 17, 18, 19]
        assert seldom.export()["keys"].tolist() == [0, 1, 2]
        assert es.restore(tmp_path / "save", [often, seldom]) == 20


def test_a_restored_shard_keeps_its_count_and_shards_of_another_division_take_the_largest(
    tmp_path: Path,
) -> None:
    """Shards' counts differ if asynchronous updates reach them."""

    def counts(var: es.EmbeddingVariable) -> list[int]:
        return [shard.apply_count() for shard in var.internals.shards]

    with open_variable(partition_num=2) as var, open_variable(partition_num=3) as other:
        var.apply_gradients([1, 2], np.ones((2, 3), np.float32))
        var.internals.shards[1].advance_apply_count(7)
        assert counts(var) == [1, 7]
        es.save(tmp_path, [var], 1)
        var.apply_gradients([1, 2], np.ones((2, 3), np.float32))
        es.restore(tmp_path, [var])
        es.restore(tmp_path, [other])
        assert counts(var) == [1, 7]
        assert counts(other) == [7, 7, 7]


@pytest.mark.parametrize("stack", TIERED_STACKS, ids=lambda stack: stack.name)
@pytest.mark.parametrize("partition_num", [1, 2])
def test_the_most_frequent_rows_come_back_into_the_upper_tiers(
    tmp_path: Path, stack: Stack, partition_num: int
) -> None:
    keys = np.arange(600)
    with open_variable(rows=2000) as var:
        occurrences = np.random.default_rng(1).permutation(600) + 1
        ids = np.repeat(keys, occurrences)
        var.apply_gradients(ids, np.ones((ids.size, 3), np.float32))
        es.save(tmp_path, [var], 1)
    with open_variable(
        stack, first_tier_rows=20, rows=2000, partition_num=partition_num
    ) as restored:
        es.restore(tmp_path, [restored])
        tiers = restored.lookup_tier(keys)
        for partition in range(partition_num):
            mine = partitions_of(keys, partition_num) == partition
            ranked = keys[mine][np.argsort(-occurrences[mine])]
            wanted = np.repeat(np.arange(stack.tiers), [20] * (stack.tiers - 1) + [ranked.size])
            np.testing.assert_array_equal(tiers[ranked], wanted[: ranked.size])


def test_variables_are_matched_by_their_names(tmp_path: Path) -> None:
    with (
        open_variable(name="a/b c") as a,
        open_variable(name="é", dim=5) as b,
        open_variable(name="c") as c,
    ):
        train(a, 1)
        train(b, 2)
        es.save(tmp_path, [a, b], 9)
        wanted = a.export(), b.export()
        train(a, 3)
        train(b, 3)
        es.restore(tmp_path, [b])
        assert_same(b.export(), wanted[1])
        es.restore(tmp_path, (b, a))
        assert_same(a.export(), wanted[0])
        with pytest.raises(CheckpointError, match="no variable c, only a/b c, é"):
            es.restore(tmp_path, [a, c])
        assert_same(a.export(), wanted[0])


def test_a_new_save_replaces_the_old_one(tmp_path: Path) -> None:
    with open_variable() as var:
        for step in range(3):
            train(var, step)
            es.save(tmp_path, [var], step)
            assert [save.name for save in tmp_path.iterdir() if save.is_dir()] == [
                f"save-{step + 1:08}"
            ]
        wanted = var.export()
        train(var, 4)
        assert es.restore(tmp_path, [var]) == 2
        assert_same(var.export(), wanted)


def test_another_optimizer_is_refused_by_both_names(tmp_path: Path) -> None:
    with open_variable(optimizer=es.optimizers.Adam(0.1)) as var, open_variable() as other:
        train(var, 1)
        train(other, 2)
        before = other.export()
        es.save(tmp_path, [var], 1)
        with pytest.raises(CheckpointError, match=r"Adam \(slots: m, v\).*Adagrad \(slots: acc"):
            es.restore(tmp_path, [other])
        assert_same(other.export(), before)


def test_a_variable_that_only_serves_takes_the_weights_alone(tmp_path: Path) -> None:
    with open_variable() as var, es.get_embedding_variable("var", 3) as serving:
        train(var, 1)
        es.save(tmp_path, [var], 1)
        es.restore(tmp_path, [serving])
        keys = var.export()["keys"]
        np.testing.assert_array_equal(serving.lookup(keys), var.lookup(keys))


def test_rows_that_dont_fit_are_refused_before_anything_changes(tmp_path: Path) -> None:
    grads = np.ones((6, 3), np.float32)
    with open_variable() as var, open_variable(rows=6) as other:
        var.apply_gradients(np.arange(6), grads)
        es.save(tmp_path / "full", [var], 1)
        var.apply_gradients(np.arange(6), grads)
        es.save_incremental(tmp_path / "same rows", [var], 2)
        var.apply_gradients(np.arange(1, 7), grads)
        es.save_incremental(tmp_path / "one more", [var], 3)
        chain = [tmp_path / "same rows"]
        es.restore(tmp_path / "full", [other], incremental=chain)
        before = other.export()
        with pytest.raises(StoreFullError, match=r"7 rows .* hold 6"):
            es.restore(tmp_path / "full", [other], incremental=[*chain, tmp_path / "one more"])
        assert_same(other.export(), before)


def test_saves_that_dont_follow_one_another_are_refused(tmp_path: Path) -> None:
    with open_variable() as var:
        train(var, 1)
        es.save(tmp_path / "full", [var], 1)
        for name in "abc":
            train(var, 2)
            es.save_incremental(tmp_path / name, [var], 2)
        before = var.export()
        for chain in ("b", "ac", "ba", "aa"):
            with pytest.raises(CheckpointError, match="doesn't follow"):
                es.restore(tmp_path / "full", [var], [tmp_path / name for name in chain])
        with pytest.raises(CheckpointError, match="holds an incremental save"):
            es.restore(tmp_path / "a", [var])
        with pytest.raises(CheckpointError, match="holds a full save"):
            es.restore(tmp_path / "full", [var], incremental=[tmp_path / "full"])
        (tmp_path / "d").mkdir()  # as a save that fails leaves it
        with pytest.raises(CheckpointError, match="holds no save; if the save to it failed"):
            es.restore(tmp_path / "full", [var], incremental=[tmp_path / "d"])
        with pytest.raises(CheckpointError, match=r"holds no save; a folder of embstore\.Checkpoi"):
            es.restore(tmp_path / "d", [var])
        assert_same(var.export(), before)
        es.restore(tmp_path / "full", [var], [tmp_path / name for name in "abc"])
        assert_same(var.export(), before)


def test_no_save_replaces_one_that_increments_follow(tmp_path: Path) -> None:
    with open_variable() as var:
        es.save(tmp_path / "full", [var], 1)
        es.save_incremental(tmp_path / "increment", [var], 2)
        for save, path, kind in (
            (es.save_incremental, "full", "a full"),
            (es.save_incremental, "increment", "an incremental"),
            (es.save, "increment", "an incremental"),
        ):
            lost = f"{path} holds {kind} save, which must not be lost"
            with pytest.raises(InvalidArgumentError, match=lost):
                save(tmp_path / path, [var], 3)
        es.restore(tmp_path / "full", [var], incremental=[tmp_path / "increment"])


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with open_variable() as var, open_variable() as same_name:
        es.save(tmp_path, [var], 1)
        with pytest.raises(InvalidArgumentError, match=r"give \[var\]"):
            es.save(tmp_path, var, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="at least one variable"):
            es.restore(tmp_path, [])
        with pytest.raises(InvalidArgumentError, match="two of them are named var"):
            es.save(tmp_path, [var, same_name], 1)
        with pytest.raises(InvalidArgumentError, match="global_step"):
            es.save(tmp_path, [var], -1)
        with pytest.raises(InvalidArgumentError, match="path"):
            es.save("", [var], 1)
        for what in (str(tmp_path), 5):
            with pytest.raises(InvalidArgumentError, match="incremental must be a list of paths"):
                es.restore(tmp_path, [var], incremental=what)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="neither saved nor restored"):
            es.save_incremental(tmp_path / "increment", [same_name], 1)
        with pytest.raises(CheckpointError, match="no such directory"):
            es.restore(tmp_path / "nothing", [var])


# --- Eviction at a save


def test_without_an_evict_option_nothing_is_evicted() -> None:
    with open_variable() as var:
        var.apply_gradients([1], np.ones((1, 3), np.float32), global_step=0)
        assert var.evict(1000) == 0
        assert var.total_count()[0] == 1
        with pytest.raises(InvalidArgumentError, match="global_step"):
            var.evict(-1)
    with pytest.raises(ClosedError):
        var.evict(1000)
