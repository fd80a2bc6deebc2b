"""A save has the initial rows, so a restored copy reads the same for keys without a row, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_variables import DRAM, open_variable, train
from engine_storage import STACKS, Stack, variable_with_options

import embstore as es

UNTRAINED = np.arange(10_000, 10_000 + 5000)  # more keys than initial rows
OTHER = es.initializers.RandomUniform(-1.0, 1.0, seed=8)
OTHER_NUMBER = es.InitializerOption(default_value_dim=100)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_keys_without_a_row_read_and_start_as_in_the_variable_that_was_saved(
    stack: Stack, tmp_path: Path
) -> None:
    with open_variable() as saved:
        train(saved, seed=1)
        es.save(tmp_path, [saved], 1)
        with open_variable(stack, initializer=OTHER, init=OTHER_NUMBER, first_tier_rows=64) as var:
            es.restore(tmp_path, [var])
            np.testing.assert_array_equal(var.lookup(UNTRAINED), saved.lookup(UNTRAINED))
            for each in (var, saved):
                each.apply_gradients(UNTRAINED[:20], np.ones((20, 3), np.float32))
            np.testing.assert_array_equal(var.lookup(UNTRAINED), saved.lookup(UNTRAINED))


def test_every_partition_has_the_saved_initial_rows(tmp_path: Path) -> None:
    with (
        open_variable(partition_num=2) as saved,
        open_variable(partition_num=3, initializer=OTHER) as var,
    ):
        train(saved, seed=1)
        es.save(tmp_path, [saved], 1)
        es.restore(tmp_path, [var])
        np.testing.assert_array_equal(var.lookup(UNTRAINED), saved.lookup(UNTRAINED))
        es.save(tmp_path / "again", [var], 2)
        with open_variable(partition_num=3) as again:
            es.restore(tmp_path / "again", [again])
            np.testing.assert_array_equal(again.lookup(UNTRAINED), saved.lookup(UNTRAINED))


def test_an_incremental_save_keeps_the_initial_rows_of_the_full_one(tmp_path: Path) -> None:
    with open_variable() as saved, open_variable(initializer=OTHER) as var:
        train(saved, seed=1)
        es.save(tmp_path / "full", [saved], 1)
        train(saved, seed=2)
        es.save_incremental(tmp_path / "more", [saved], 2)
        es.restore(tmp_path / "full", [var], incremental=[tmp_path / "more"])
        np.testing.assert_array_equal(var.lookup(UNTRAINED), saved.lookup(UNTRAINED))


@pytest.mark.parametrize("dim", [2, 5])
def test_columns_that_the_save_lacks_start_as_the_variables_own(dim: int, tmp_path: Path) -> None:
    with open_variable(dim=3) as saved, open_variable(dim=dim, initializer=OTHER) as var:
        own = var.lookup(UNTRAINED)
        train(saved, seed=1)
        es.save(tmp_path, [saved], 1)
        es.restore(tmp_path, [var])
        read = var.lookup(UNTRAINED)
        common = min(dim, 3)
        np.testing.assert_array_equal(read[:, :common], saved.lookup(UNTRAINED)[:, :common])
        np.testing.assert_array_equal(read[:, common:], own[:, common:])


def test_a_restore_that_is_refused_leaves_the_initial_rows(tmp_path: Path) -> None:
    with open_variable() as saved, open_variable(DRAM, initializer=OTHER, rows=4) as var:
        own = var.lookup(UNTRAINED)
        train(saved, seed=1)
        es.save(tmp_path, [saved], 1)
        with pytest.raises(es.errors.StoreFullError):
            es.restore(tmp_path, [var])
        np.testing.assert_array_equal(var.lookup(UNTRAINED), own)


@pytest.mark.parametrize("partition_num", [1, 2])
def test_a_pool_that_goes_on_from_a_save_keeps_its_initial_rows(
    place: Path, partition_num: int
) -> None:
    with open_variable() as saved:
        train(saved, seed=1)
        es.save(place / "saved", [saved], 1)
        wanted = saved.lookup(UNTRAINED)

    def opened() -> es.EmbeddingVariable:
        storage = es.StorageOption(
            es.StorageType.DRAM_PMEM, place, [4096, 8 << 20], durability="checkpoint"
        )
        return variable_with_options(
            "var",
            3,
            storage,
            initializer=OTHER,
            optimizer=saved.optimizer,
            partition_num=partition_num,
            restores=True,
        )

    with opened() as var:
        es.restore(place / "saved", [var])
        es.persist([var], place / "lists")
    for _ in range(2):
        with opened() as var:
            es.restore_persisted([var], place / "lists")
            np.testing.assert_array_equal(var.lookup(UNTRAINED), wanted)
            es.persist([var], place / "lists")
