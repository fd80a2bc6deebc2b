"""Files that can't be written for a while: nothing is half done, and nothing is lost."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from engine_storage import IN_MEMORY
from exports import assert_same
from numpy.typing import NDArray
from programs import gradients_of_ones, kept_variable, no_file_grows_beyond, run_function

import embstore as es
from embstore.errors import StorageError

pytestmark = pytest.mark.timeout(200)

KEYS = 20_000


def largest_file_bytes(directory: Path) -> int:
    largest = 0
    for file in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # files are removed meanwhile
            largest = max(largest, file.stat().st_size)
    return largest


def every_failed_apply_leaves_everything_as_it_was(
    storage_type: es.StorageType, batch: int, first_tier_rows: int
) -> None:
    """Compares with a table in DRAM, which gets the applies that succeeded."""
    random = np.random.default_rng(1)
    everything = np.arange(KEYS)
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory,
        kept_variable(Path(directory), False, first_tier_rows, storage_type) as var,
    ):
        model = es.get_embedding_variable(
            "model",
            16,
            initializer=es.initializers.RandomUniform(seed=9),
            optimizer=es.optimizers.Adagrad(0.1),
        )

        def same_as_model() -> None:
            assert_same(var.export(), model.export())
            for read in ("get_frequency", "get_version", "lookup"):
                np.testing.assert_array_equal(
                    getattr(var, read)(everything), getattr(model, read)(everything), err_msg=read
                )

        def next_batch() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            ids = random.integers(0, KEYS, batch)
            return ids, random.standard_normal((batch, 16)).astype(np.float32)

        refusals = 0
        for round_number in range(12):
            # Writes fail from somewhere in a file on, or at once; for more batches than memory can
            # take.
            largest = largest_file_bytes(Path(directory))
            place = int(largest * random.random()) if round_number % 2 else 0
            refused = None
            with no_file_grows_beyond(place):
                for _ in range(10):
                    ids, grads = next_batch()
                    try:
                        var.apply_gradients(ids, grads)
                    except StorageError:
                        refused = ids, grads
                        same_as_model()
                        break
                    model.apply_gradients(ids, grads)
            try:
                if refused is not None:
                    refusals += 1
                    same_as_model()
                    var.apply_gradients(*refused)  # must count once: the failed try changed nothing
                    model.apply_gradients(*refused)
                var.drain()
            except StorageError as error:
                # After its first failed write LevelDB may refuse all writes of all callers.
                told = str(error)
                assert "save the table, whose rows can be read, and make it anew" in told
                assert storage_type is es.StorageType.DRAM_LEVELDB
                same_as_model()
                return
            same_as_model()
        assert refusals >= 6, "the files could always be written"


@pytest.mark.parametrize(
    "first_tier_rows", [4096, 200], ids=["batch fits first tier", "batch is larger"]
)
@pytest.mark.parametrize(
    "storage_type", ["DRAM_SSDHASH", pytest.param("DRAM_LEVELDB", marks=pytest.mark.long)]
)
def test_an_apply_whose_rows_cannot_be_written_changes_nothing(
    storage_type: str, first_tier_rows: int
) -> None:
    if storage_type == "DRAM_LEVELDB":
        pytest.importorskip("plyvel")  # comes with the library
    call = "every_failed_apply_leaves_everything_as_it_was"
    run_function(
        "test_failing_writes",
        f"{call}(test_failing_writes.es.StorageType.{storage_type}, 3000, {first_tier_rows})",
    )


def wait_for_failed_moves(var: es.EmbeddingVariable) -> None:
    """Waits until a move has failed: rows are moved after the calls have returned."""
    deadline = time.monotonic() + 60
    while not var.stats()["background_error"]:
        assert time.monotonic() < deadline, "nothing fails"
        time.sleep(0.005)


def repaired_errors_are_not_raised_again(closes: bool) -> None:
    ids = np.arange(6000)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        # The buffer is so small that every demotion writes.
        opened = functools.partial(
            kept_variable, Path(directory), first_tier_rows=1000, buffer_bytes=128 << 10
        )
        var = opened()
        with no_file_grows_beyond(0):
            refused = 0
            for first in range(0, ids.size, 500):
                some = ids[first : first + 500]
                try:
                    var.apply_gradients(some, gradients_of_ones(some))
                except StorageError:
                    refused += 1
        assert refused
        rest = ids[var.get_frequency(ids) == 0]
        var.apply_gradients(rest, gradients_of_ones(rest))
        var.drain()
        wanted = var.lookup(ids, train=True)
        below = ids[var.lookup_tier(ids) == 1][:900]
        with no_file_grows_beyond(0):
            var.lookup(np.repeat(below, 3))  # promotes, so that other rows must be demoted
            wait_for_failed_moves(var)
        if closes:
            var.close()
        del var
        with opened() as again:
            assert again.total_count()[0] == ids.size, again.total_count()
            np.testing.assert_array_equal(again.lookup(ids, train=True), wanted)
            assert (again.get_frequency(ids) == 1).all()


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
def test_an_error_that_was_repaired_is_not_thrown_again_and_loses_no_row(closes: bool) -> None:
    run_function("test_failing_writes", f"repaired_errors_are_not_raised_again({closes})")


def look_ups_read_rows_while_writes_fail() -> None:
    ids = np.arange(6000)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        var = kept_variable(Path(directory), False, first_tier_rows=500)
        var.apply_gradients(ids, gradients_of_ones(ids))
        var.drain()
        wanted = var.lookup(ids, train=True)
        random = np.random.default_rng(2)
        with no_file_grows_beyond(0):
            for _ in range(300):
                some = random.integers(0, ids.size, 200)
                np.testing.assert_array_equal(var.lookup(some), wanted[some])
        var.drain()
        np.testing.assert_array_equal(var.lookup(ids, train=True), wanted)
        var.close()


def test_a_serving_look_up_does_not_fail_if_files_cannot_be_written() -> None:
    run_function("test_failing_writes", "look_ups_read_rows_while_writes_fail()")
