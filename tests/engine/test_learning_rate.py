"""A variable's learning rate: changed between steps, from any thread, and kept in checkpoints."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import open_variable, train
from engine_storage import MakeVariable
from exports import assert_same
from plain_rules import EVERY_RULE

import embstore as es
from embstore import _core, optimizers
from embstore.errors import ClosedError, InvalidArgumentError

DIM = 13


@pytest.mark.parametrize("rate", [np.float32(0.7), 1])
def test_any_number_may_be_a_rate(make_variable: MakeVariable, rate: Any) -> None:
    var = make_variable()
    var.learning_rate = rate
    assert var.learning_rate == float(rate)


@pytest.mark.parametrize(
    "rate",
    [
        -0.1,
        math.nan,
        math.inf,
        1e39,
        pytest.param(10**400, id="too large for a float"),
        pytest.param(10**5000, id="huge"),
        "fast",
        None,
        True,
    ],
)
def test_an_impossible_rate_is_refused_by_name(make_variable: MakeVariable, rate: Any) -> None:
    var = make_variable()
    with pytest.raises(InvalidArgumentError, match=r"^learning_rate must be"):
        var.learning_rate = rate
    assert var.learning_rate == 0.1


def test_only_ftrl_refuses_a_rate_of_0(make_variable: MakeVariable) -> None:
    still = make_variable()
    still.learning_rate = 0
    still.apply_gradients([1], np.ones((1, 3), np.float32))
    assert (still.lookup([1]) == 1).all()
    var = make_variable(optimizer=optimizers.Ftrl(0.1))
    with pytest.raises(InvalidArgumentError, match="learning_rate must be greater than 0"):
        var.learning_rate = 0


def test_ftrl_refuses_a_rate_whose_inverse_is_infinite_in_float32(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(optimizer=optimizers.Ftrl(0.1))
    for rate in (1e-46, 1e-39):
        with pytest.raises(
            InvalidArgumentError, match=r"learning_rate must be at least 1\.17549e-38"
        ):
            var.learning_rate = rate
    var.learning_rate = 1.2e-38
    var.apply_gradients([1], np.ones((1, 3), np.float32))
    assert np.isfinite(var.lookup([1])).all()


@pytest.mark.parametrize(
    "optimizer", [rule for rule in EVERY_RULE if rule.name != "Ftrl"], ids=lambda rule: rule.name
)
def test_a_schedule_may_decay_until_the_rate_is_0_in_float32(
    make_variable: MakeVariable, optimizer: optimizers.Optimizer
) -> None:
    var = make_variable(optimizer=optimizer)
    for rate in (0.1, 1e-30, 1e-46, 1e-300, 0.0):
        var.learning_rate = rate
        var.apply_gradients([1], np.ones((1, 3), np.float32))
    assert np.isfinite(var.lookup([1])).all()


def test_a_variable_without_an_optimizer_has_no_rate(make_variable: MakeVariable) -> None:
    var = make_variable(optimizer=None)
    with pytest.raises(InvalidArgumentError, match="without an optimizer"):
        _ = var.learning_rate
    with pytest.raises(InvalidArgumentError, match="without an optimizer"):
        var.learning_rate = 0.1


def test_a_closed_variable_has_no_rate(make_variable: MakeVariable) -> None:
    var = make_variable()
    var.close()
    with pytest.raises(ClosedError):
        _ = var.learning_rate
    with pytest.raises(ClosedError):
        var.learning_rate = 0.1


def test_an_apply_beside_a_change_of_the_rate_uses_one_rate_for_all_its_keys(
    make_variable: MakeVariable,
) -> None:
    var = make_variable(optimizer=optimizers.SGD(1.0), partition_num=4, dim=2)
    ids = np.arange(400)
    var.apply_gradients(ids, np.zeros((400, 2), np.float32))
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for rate in (1.0, 2.0, 4.0):
                var.learning_rate = rate

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            before = var.lookup(ids)
            var.apply_gradients(ids, np.ones((400, 2), np.float32))
            steps = np.unique(before - var.lookup(ids))
            assert len(steps) == 1
            assert steps[0] in (1.0, 2.0, 4.0)
    finally:
        stop.set()
        thread.join()


# --- Checkpoints


def _as_version(version: int, save: Path) -> None:
    """Rewrites a manifest as version 2, before shards had their own counts, or 1, before rates."""
    path = save / "manifest.json"
    fields = json.loads(path.read_bytes())
    del fields["checksum"]
    fields["version"] = version
    for entry in fields["variables"]:
        for name in ("apply_count", "beta1_power", "beta2_power"):
            counts = [file.pop(name) for file in entry["files"]]
            entry[name] = counts[0]
        if version == 1:
            del entry["learning_rate"]
    unsigned = (json.dumps(fields, indent=1) + "\n").encode()
    fields["checksum"] = f"{_core.crc32c(unsigned):08x}"
    path.write_bytes((json.dumps(fields, indent=1) + "\n").encode())


def test_a_save_from_before_each_shard_had_its_own_counts_goes_on_to_the_bit(
    tmp_path: Path,
) -> None:
    adam = optimizers.Adam(0.1)
    with (
        open_variable(optimizer=adam, partition_num=2) as var,
        open_variable(optimizer=adam) as other,
    ):
        train(var, 3)
        es.save(tmp_path, [var], 1)
        _as_version(2, tmp_path / "save-00000001")
        es.restore(tmp_path, [other])
        for each in (var, other):
            train(each, 4)
        assert_same(other.export(), var.export())


def test_a_save_from_before_rates_were_kept_leaves_the_variables_own(tmp_path: Path) -> None:
    with open_variable() as var, open_variable(optimizer=optimizers.Adagrad(0.4)) as other:
        train(var, 1)
        es.save(tmp_path, [var], 1)
        _as_version(1, tmp_path / "save-00000001")
        other.learning_rate = 0.05
        es.restore(tmp_path, [other])
        assert other.learning_rate == 0.05
        assert_same(other.export(), var.export())


def test_a_variable_that_only_serves_takes_rows_without_a_rate(tmp_path: Path) -> None:
    with open_variable() as var, es.get_embedding_variable("var", 3) as serving:
        train(var, 1)
        es.save(tmp_path / "trained", [var], 1)
        es.restore(tmp_path / "trained", [serving])
        es.save(tmp_path / "served", [serving], 1)
        es.restore(tmp_path / "served", [serving])
        assert serving.total_count() == var.total_count()
