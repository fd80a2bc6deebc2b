"""Keys that wait at a filter keep their counts across a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_variables import open_variable, train
from engine_storage import STACKS, Stack
from exports import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import embstore as es
from embstore.errors import CheckpointError, InvalidArgumentError

COUNTER = es.CounterFilter(4)
SKETCH = es.CBFFilter(4, 200, 0.001, np.uint16)
KEYS = np.arange(1, 70) * 7919 - 40_000  # the keys of train()


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    saved=st.sampled_from(STACKS),
    restored=st.sampled_from(STACKS),
    admission=st.sampled_from([COUNTER, SKETCH]),
    partitions=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    incremental=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_waiting_keys_come_back_with_their_counts(
    tmp_path_factory: pytest.TempPathFactory,
    saved: Stack,
    restored: Stack,
    admission: es.CounterFilter | es.CBFFilter,
    partitions: tuple[int, int],
    incremental: bool,
    seed: int,
) -> None:
    if admission is SKETCH:  # a sketch knows no keys, so it can't be divided anew
        partitions = (partitions[0], partitions[0])
    path = tmp_path_factory.mktemp("saved")
    with (
        open_variable(saved, filter=admission, partition_num=partitions[0]) as var,
        open_variable(restored, filter=admission, partition_num=partitions[1]) as other,
    ):
        train(var, seed, batches=2)
        es.save(path / "full", [var], 1)
        chain = []
        if incremental:
            train(var, seed + 1, batches=1)
            chain = [path / "increment"]
            es.save_incremental(chain[0], [var], 2)
        train(other, seed + 2, batches=1)
        es.restore(path / "full", [other], incremental=chain)
        for _ in range(2):
            np.testing.assert_array_equal(other.get_frequency(KEYS), var.get_frequency(KEYS))
            np.testing.assert_array_equal(other.get_version(KEYS), var.get_version(KEYS))
            np.testing.assert_array_equal(other.lookup(KEYS), var.lookup(KEYS))
            assert other.stats()["waiting_keys"] == var.stats()["waiting_keys"]
            assert_same(other.export(), var.export())
            for each in (var, other):
                train(each, seed + 3, batches=2)


def test_a_sketch_that_is_partitioned_anew_forgets_no_key(tmp_path: Path) -> None:
    with (
        open_variable(filter=SKETCH, partition_num=2) as var,
        open_variable(filter=SKETCH, partition_num=3) as other,
    ):
        train(var, 1, batches=1)
        es.save(tmp_path, [var], 1)
        es.restore(tmp_path, [other])
        assert (other.get_frequency(KEYS) >= var.get_frequency(KEYS)).all()


def test_counts_of_a_counter_filter_may_go_on_in_a_sketch(tmp_path: Path) -> None:
    with open_variable(filter=COUNTER) as var, open_variable(filter=SKETCH) as other:
        train(var, 1, batches=1)
        es.save(tmp_path, [var], 1)
        es.restore(tmp_path, [other])
        assert (other.get_frequency(KEYS) >= var.get_frequency(KEYS)).all()
        assert_same(other.export(), var.export())


@pytest.mark.parametrize(
    "option", [COUNTER, es.CBFFilter(4, 5000, 0.001, np.uint16), es.CBFFilter(4, 200, 0.001)]
)
def test_a_sketch_that_does_not_fit_the_filter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: es.CounterFilter | es.CBFFilter
) -> None:
    with open_variable(filter=SKETCH) as var, open_variable(filter=option) as other:
        train(var, 1)
        train(other, 2)
        before = other.export()
        es.save(tmp_path, [var], 1)
        with pytest.raises(CheckpointError, match="TF_EV_SAVE_FILTERED_FEATURES=0"):
            es.restore(tmp_path, [other])
        assert_same(other.export(), before)
        monkeypatch.setenv("TF_EV_SAVE_FILTERED_FEATURES", "0")
        es.restore(tmp_path, [other])
        assert_same(other.export(), var.export())
        assert other.stats()["waiting_keys"] == 0


def test_a_variable_without_a_filter_takes_the_rows(tmp_path: Path) -> None:
    for option in (COUNTER, SKETCH):
        with open_variable(filter=option) as var, open_variable() as other:
            train(var, 1)
            es.save(tmp_path, [var], 1)
            es.restore(tmp_path, [other])
            assert_same(other.export(), var.export())


@pytest.mark.parametrize("value", ["0", "False", "false"])
@pytest.mark.parametrize("option", [COUNTER, SKETCH], ids=["counter", "sketch"])
def test_waiting_keys_are_left_out_if_the_environment_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: es.CounterFilter | es.CBFFilter,
    value: str,
) -> None:
    with open_variable(filter=option) as var, open_variable(filter=option) as other:
        train(var, 1)
        assert var.stats()["waiting_keys"] > 0
        monkeypatch.setenv("TF_EV_SAVE_FILTERED_FEATURES", value)
        es.save(tmp_path, [var], 1)
        monkeypatch.delenv("TF_EV_SAVE_FILTERED_FEATURES")
        es.restore(tmp_path, [other])
        assert other.stats()["waiting_keys"] == 0
        assert_same(other.export(), var.export())
        monkeypatch.setenv("TF_EV_SAVE_FILTERED_FEATURES", "perhaps")
        with pytest.raises(InvalidArgumentError, match="TF_EV_SAVE_FILTERED_FEATURES"):
            es.save(tmp_path, [var], 1)


def test_keys_of_evicted_rows_wait_again(tmp_path: Path) -> None:
    one = np.ones((1, 3), np.float32)
    with open_variable(filter=es.CounterFilter(2), evict=es.GlobalStepEvict(5)) as var:
        for _ in range(3):
            var.apply_gradients([1], one, global_step=1)
        es.save(tmp_path, [var], 10)
        assert var.total_count() == (0, 3)
        assert var.get_frequency([1]) == [0]
        var.apply_gradients([1], one, global_step=11)
        assert var.total_count() == (0, 3)
        var.apply_gradients([1], one, global_step=12)
        assert var.total_count() == (1, 3)


def test_waiting_keys_that_are_not_seen_again_are_forgotten_by_their_step(tmp_path: Path) -> None:
    once, again, few = np.arange(20_000), np.arange(10), np.arange(3)
    grads = np.ones((once.size, 4), np.float32)
    option = es.EmbeddingVariableOption(
        filter_option=es.CounterFilter(3), evict_option=es.GlobalStepEvict(5)
    )
    with (
        es.get_embedding_variable(
            "var", 4, optimizer=es.optimizers.SGD(0.1), ev_option=option, partition_num=2
        ) as var,
        es.get_embedding_variable(
            "var", 4, optimizer=es.optimizers.SGD(0.1), ev_option=option
        ) as other,
    ):
        var.apply_gradients(once, grads, global_step=0)
        waiting_bytes = var.stats()["filter_bytes"]
        var.apply_gradients(again, grads[:10], global_step=7)
        es.save(tmp_path / "nothing is old", [var], 5)
        assert var.stats()["waiting_keys"] == once.size

        es.save(tmp_path / "save", [var], 12)
        es.restore(tmp_path / "save", [other])
        for each in (var, other):
            assert each.stats()["waiting_keys"] == 10
            assert each.stats()["filter_bytes"] < waiting_bytes / 10
            assert each.get_frequency([9, 10]).tolist() == [2, 0]
            assert each.get_version([9, 10]).tolist() == [7, -1]
            each.apply_gradients(once, grads, global_step=13)
            assert each.total_count()[0] == 10, "the others begin anew"

        assert var.evict(25) == 10, "rows; keys that waited had none"
        assert var.stats()["waiting_keys"] == 0
        var.apply_gradients(few, grads[:3], global_step=26)
        assert var.get_frequency(few).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("admission", "evict"),
    [(COUNTER, es.L2WeightEvict(0.5)), (SKETCH, es.GlobalStepEvict(5))],
    ids=["weights alone are looked at", "a sketch knows no keys"],
)
def test_waiting_keys_whose_age_is_unknown_stay(
    tmp_path: Path,
    admission: es.CounterFilter | es.CBFFilter,
    evict: es.L2WeightEvict | es.GlobalStepEvict,
) -> None:
    with open_variable(filter=admission, evict=evict) as var:
        var.apply_gradients([1, 2, 3], np.ones((3, var.dim), np.float32), global_step=0)
        es.save(tmp_path, [var], 100)
        assert (var.get_frequency([1, 2, 3]) >= 1).all()
