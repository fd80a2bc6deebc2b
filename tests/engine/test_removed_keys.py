"""Keys whose rows were removed since the last save: the next incremental save lists them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from checkpoint_variables import fail_to_save
from engine_storage import IN_MEMORY, variable_with_options
from exports import assert_same
from programs import anonymous_bytes, run_function

import embstore as es
from embstore import files

MIB = 1 << 20
KEYS = 100_000
ROUNDS = 40
DIM = 2


def variable(storage_path: Path | None = None) -> es.EmbeddingVariable:
    several = storage_path is not None
    return variable_with_options(
        "var",
        DIM,
        es.StorageOption(
            es.StorageType.DRAM_SSDHASH if several else es.StorageType.DRAM,
            str(storage_path) if several else None,
            [300 * 16] if several else None,
        ),
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(0.5),
        evict=es.GlobalStepEvict(steps_to_live=10),
    )


def train(var: es.EmbeddingVariable, ids: np.ndarray, step: int) -> None:
    var.apply_gradients(ids, np.ones((ids.size, DIM), np.float32), global_step=step)


def count_removed_keys(path: Path) -> int:
    """Returns how many removed keys the only increment of a directory lists."""
    (manifest,) = path.glob("increment-*/*.json")
    (entry,) = json.loads(manifest.read_text())["variables"]
    return sum(file["removed_keys"] for file in entry["files"])


def evict_again_and_again() -> None:
    """Runs saves that evict all rows and then fail."""
    es.set_num_threads(1)  # more would begin to keep buffers at any time
    ids = np.arange(KEYS)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory, variable() as var:
        path = Path(directory)
        train(var, ids, 0)
        es.save(path / "base", [var], 0)
        before = 0
        for n in range(1, ROUNDS + 1):
            train(var, ids, 100 * n)
            save = es.save_incremental if n % 2 == 0 else es.save
            fail_to_save(save, path / "failing", var, 100 * n + 50)
            assert var.total_count()[0] == 0
            if n == 5:
                before = anonymous_bytes()
        grown = anonymous_bytes() - before
        train(var, ids[:10], 100_000)
        es.save_incremental(path / "increment", [var], 100_000)
        assert count_removed_keys(path / "increment") == KEYS - 10
        with variable() as other:
            es.restore(path / "base", [other], incremental=[path / "increment"])
            np.testing.assert_array_equal(other.export()["keys"], ids[:10])
    assert grown < 4 * MIB, f"{grown / MIB:.0f} MiB more after {ROUNDS} saves that failed"


@pytest.mark.long
@pytest.mark.timeout(120)
def test_keys_that_are_evicted_again_and_again_are_kept_once() -> None:
    run_function("test_removed_keys", "evict_again_and_again()")


def test_keys_removed_while_a_save_is_synced_belong_to_the_next_save(tmp_path: Path) -> None:
    sync = files.sync
    with variable() as var:
        train(var, np.arange(10), 1)
        es.save(tmp_path / "base", [var], 1)
        train(var, np.arange(10), 2)

        (tmp_path / "first").mkdir()

        def drop_and_sync(directory: Path) -> None:
            var._shards[0].drop(np.array([3, 4]))
            sync(directory)

        with patch("embstore.checkpoint.directories.sync", side_effect=drop_and_sync):
            es.save_incremental(tmp_path / "first", [var], 2)
        es.save_incremental(tmp_path / "second", [var], 3)
    with variable() as restored:
        increments = [tmp_path / "first", tmp_path / "second"]
        es.restore(tmp_path / "base", [restored], incremental=increments)
        np.testing.assert_array_equal(restored.export()["keys"], [0, 1, 2, 5, 6, 7, 8, 9])


@pytest.mark.parametrize("several_tiers", [False, True])
def test_keys_without_a_row_are_not_listed(tmp_path: Path, several_tiers: bool) -> None:
    """Removing such a key changes nothing."""
    absent = np.arange(1000, 301_000)
    with variable(storage_path=tmp_path / "rows" if several_tiers else None) as var:
        train(var, np.arange(10), 1)
        es.save(tmp_path / "base", [var], 1)
        assert var.remove(absent) == 0
        assert var.remove(np.concatenate([absent, [3, 4], absent, [4]])) == 2
        assert var.remove([4]) == 0
        es.save_incremental(tmp_path / "increment", [var], 2)
        assert count_removed_keys(tmp_path / "increment") == 2
    with variable() as restored:
        es.restore(tmp_path / "base", [restored], incremental=[tmp_path / "increment"])
        np.testing.assert_array_equal(restored.export()["keys"], [0, 1, 2, 5, 6, 7, 8, 9])


def remove_absent_keys_again_and_again() -> None:
    es.set_num_threads(1)
    absent = np.arange(1_000_000)
    with variable() as var:
        var.remove(absent)
        before = anonymous_bytes()
        for _ in range(5):
            absent += absent.size
            var.remove(absent)
        grown = anonymous_bytes() - before
    assert grown < 4 * MIB, f"{grown / MIB:.0f} MiB more after keys without a row were removed"


def test_keys_without_a_row_take_no_memory() -> None:
    run_function("test_removed_keys", "remove_absent_keys_again_and_again()")


def test_a_key_that_waits_at_a_filter_is_not_listed(tmp_path: Path) -> None:
    """A save has all keys that wait, so it need only list removed rows."""
    option = es.EmbeddingVariableOption(filter_option=es.CounterFilter(3))

    def filtered() -> es.EmbeddingVariable:
        return es.get_embedding_variable(
            "var", DIM, optimizer=es.optimizers.SGD(0.5), ev_option=option
        )

    with filtered() as var:
        train(var, np.repeat([1, 2], 3), 1)
        train(var, np.array([7, 8]), 1)
        es.save(tmp_path / "base", [var], 1)
        assert var.remove([1, 7]) == 1
        train(var, np.array([1, 7]), 2)
        es.save_incremental(tmp_path / "increment", [var], 2)
        assert count_removed_keys(tmp_path / "increment") == 1
        with filtered() as restored:
            es.restore(tmp_path / "base", [restored], incremental=[tmp_path / "increment"])
            assert_same(restored.export(), var.export())
            keys = [1, 2, 7, 8]
            np.testing.assert_array_equal(restored.get_frequency(keys), var.get_frequency(keys))


def remove_rows_again_and_again_and_save_then() -> None:
    es.set_num_threads(1)
    keys = np.arange(500_000)
    with variable() as var, tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        path = Path(folder)
        for step in range(6):
            train(var, keys + step * keys.size, step)
            var.remove(keys + step * keys.size)
            if step == 1:
                before = anonymous_bytes()
        grown = anonymous_bytes() - before
        assert grown < 4 * MIB, f"{grown / MIB:.0f} MiB more after rows that no save has went"
        train(var, keys[:10], 6)
        es.save(path / "base", [var], 6)
        var.remove([3])
        es.save_incremental(path / "increment", [var], 7)
        assert count_removed_keys(path / "increment") == 1


def test_rows_that_are_removed_before_the_first_save_take_no_memory() -> None:
    run_function("test_removed_keys", "remove_rows_again_and_again_and_save_then()")
