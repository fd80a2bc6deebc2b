"""Rows that are set to given values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import open_variable, train
from durable_table import contents, make_durable_table
from engine_storage import STACKS, Stack

import embstore as es
from embstore.errors import InvalidArgumentError


def rows_of(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)


@pytest.mark.parametrize("partition_num", [1, 3])
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_a_table_that_is_put_elsewhere_trains_on_with_the_same_bits(
    stack: Stack, partition_num: int
) -> None:
    with (
        open_variable() as var,
        open_variable(
            stack, partition_num=partition_num, initializer=es.initializers.Ones()
        ) as copy,
    ):
        train(var, seed=1)
        there = var.export()
        copy.apply_gradients(there["keys"][::3], rows_of(len(there["keys"][::3])))  # overwritten
        copy.remove(there["keys"][::3][:1])
        copy.put(
            there["keys"],
            there["values"],
            slots={"accumulator": there["accumulator"]},
            freqs=there["freqs"],
            version=9,
        )
        copied = copy.export()
        for column in ("keys", "values", "accumulator"):
            np.testing.assert_array_equal(copied[column], there[column])
        assert (copied["versions"] == 9).all()
        for each in (var, copy):
            each.apply_gradients(there["keys"], rows_of(len(there["keys"]), seed=2))
        np.testing.assert_array_equal(copy.export()["values"], var.export()["values"])


def test_a_put_without_slots_keeps_those_of_old_rows_and_begins_those_of_new_rows() -> None:
    with open_variable() as var:
        var.apply_gradients([1], np.ones((1, 3), np.float32))
        before = var.export()["accumulator"]
        var.put([[1, 2]], np.array([[[1, 2, 3], [4, 5, 6]]], np.float32))
        after = var.export()
        assert after["values"].tolist() == [[1, 2, 3], [4, 5, 6]]
        np.testing.assert_array_equal(after["accumulator"][0], before[0])
        assert after["accumulator"][1].tolist() == [np.float32(0.1)] * 3
        assert after["freqs"].tolist() == [2, 1]


def test_rows_that_are_put_pass_a_filter_and_their_keys_wait_no_more() -> None:
    with open_variable(filter=es.CounterFilter(5)) as var:
        var.apply_gradients([1, 1, 3], rows_of(3))
        assert var.stats()["waiting_keys"] == 2
        var.put([1, 2], rows_of(2))
        assert var.stats()["waiting_keys"] == 1
        np.testing.assert_array_equal(var.lookup([1, 2]), rows_of(2))
        assert var.export()["keys"].tolist() == [1, 2]


def test_a_checkpoint_of_a_durable_pool_has_the_rows_that_were_put(place: Path) -> None:
    with make_durable_table(place) as var:
        var.put(np.arange(100), np.ones((100, var.dim), np.float32))
        wanted = contents(var)
        es.persist([var], place / "checkpoints")
        var.put(np.arange(100), np.zeros((100, var.dim), np.float32))
    with make_durable_table(place) as var:
        es.restore_persisted([var], place / "checkpoints")
        assert contents(var) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": [1, 1], "values": rows_of(2)}, "ids: 1 is there more than once"),
        ({"ids": [1], "values": rows_of(2)}, r"values must have the shape .*\(1, 3\)"),
        ({"ids": [1], "values": np.ones((1, 3))}, "values must be float32"),
        ({"ids": [1], "values": rows_of(1), "slots": {}}, "slots must have accumulator"),
        ({"ids": [1], "values": rows_of(1), "slots": {1: 2}}, "slots must have acc.*got 1"),
        ({"ids": [1], "values": rows_of(1), "slots": 3}, "slots must be a dict .* got int"),
        ({"ids": [1], "values": rows_of(1), "slots": [("m", 1)]}, "slots must be a dict .* list"),
        (
            {"ids": [1], "values": rows_of(1), "slots": {"accumulator": rows_of(2)}},
            r"slots\['accumulator'\] must have the shape",
        ),
        ({"ids": [1], "values": rows_of(1), "freqs": [0]}, "freqs must be from 1 to 4294967295"),
        ({"ids": [1], "values": rows_of(1), "freqs": [2**32]}, "freqs must be from 1"),
        ({"ids": [1], "values": rows_of(1), "freqs": [1.5]}, "freqs must be integers"),
        ({"ids": [1], "values": rows_of(1), "freqs": [1, 2]}, "freqs must be integers of the"),
        ({"ids": [1], "values": rows_of(1), "version": -1}, "version"),
    ],
)
def test_a_wrong_argument_of_put_is_named(arguments: dict[str, Any], message: str) -> None:
    with open_variable() as var:
        with pytest.raises(InvalidArgumentError, match=message):
            var.put(**arguments)
        assert len(var) == 0
