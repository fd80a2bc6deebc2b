"""A variable with shards in actors is like one with local partitions, to the bit."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_node import wait_until_taken
from sharded import MIB, assert_same, local_and_sharded, train, train_a_little

import embstore as es
from embstore import _core
from embstore.errors import (
    ClosedError,
    InvalidArgumentError,
    MissingDeviceError,
    StorageError,
    StoreFullError,
    UnsupportedError,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]


def _on_pmem(folder: Path, size: int = 256 * MIB) -> es.EmbeddingVariable:
    storage = es.StorageOption(es.StorageType.DRAM_PMEM, [None, folder], [MIB, size])
    option = es.EmbeddingVariableOption(storage_option=storage)
    adagrad = es.optimizers.Adagrad(0.1)
    return es.get_embedding_variable("var", 3, optimizer=adagrad, ev_option=option, shards=2)


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.long), 3])
def test_training_saving_and_restoring_give_the_same_rows(tmp_path: Path, shards: int) -> None:
    options: dict[str, Any] = {
        "filter_option": es.CounterFilter(2),
        "evict_option": es.GlobalStepEvict(steps_to_live=8),
    }
    ids = np.arange(-4, 60).reshape(4, 16) * 7919 - 40_000
    with local_and_sharded(shards, tmp_path, **options) as (here, there):
        for var in (here, there):
            train(var, seed=1)
            var.learning_rate = 0.05
            es.save(tmp_path / f"saved-{id(var)}", [var], 5)
            train(var, seed=2)
            es.save_incremental(tmp_path / f"increment-{id(var)}", [var], 10)
        trained = here.export()
        assert_same(there.export(), trained)
        for read in ("lookup", "lookup_tier", "get_frequency", "get_version"):
            for var in (here, there):
                var.drain()
            np.testing.assert_array_equal(getattr(there, read)(ids), getattr(here, read)(ids))
        assert there.total_count() == here.total_count()
        assert there.learning_rate == 0.05
        # The timing of movements decides which of the rows are in the first tier.
        looked_up = [var.stats()["hits"] + var.stats()["misses"] for var in (here, there)]
        assert looked_up[0] == looked_up[1]
        assert there.stats()["waiting_keys"] == here.stats()["waiting_keys"]
        assert there.damaged_keys().size == 0
        for var, other in ((here, there), (there, here)):  # each restores the other's save
            train(var, seed=3)
            saved = tmp_path / f"saved-{id(other)}"
            es.restore(saved, [var], [tmp_path / f"increment-{id(other)}"])
            assert_same(var.export(), trained)
            train(var, seed=4)
        assert_same(there.export(), here.export())


def test_hits_are_counted_as_often_as_ids_occur() -> None:
    with local_and_sharded(2, filter_option=es.CBFFilter(3, 1000, 0.01)) as (here, there):
        for var in (here, there):
            train(var, seed=1)
        for counter in ("hits", "misses", "without_row"):
            assert there.stats()[counter] == here.stats()[counter], counter
        assert_same(there.export(), here.export())


@pytest.mark.long
def test_a_checkpoint_goes_onto_another_number_of_shards(tmp_path: Path) -> None:
    with local_and_sharded(2) as (_, two), local_and_sharded(3) as (one, three):
        train(two, seed=1)
        es.save(tmp_path / "saved", [two], 5)
        for var in (one, three):
            es.restore(tmp_path / "saved", [var])
            assert_same(var.export(), two.export())


def test_exported_rows_are_the_callers_own_and_accesses_are_not_recorded_by_the_program() -> None:
    with local_and_sharded(1, dim=64) as (_, there):
        ids = np.arange(5000)
        there.apply_gradients(ids, np.ones((ids.size, 64), np.float32))
        exported = there.export()
        exported["values"][:] = 0  # Ray's own memory would be read-only
        assert there.lookup(ids).all()
        rows = np.empty((ids.size, 64), np.float32)
        assert there.lookup(ids, out=rows) is rows
        np.testing.assert_array_equal(rows, there.lookup(ids))
        with (
            pytest.raises(UnsupportedError, match="var has shards in other processes"),
            es.record_accesses(there),
        ):
            pass


def test_a_batch_that_one_shard_has_no_room_for_changes_no_other(tmp_path: Path) -> None:
    with local_and_sharded(2, tmp_path, size=48 * 60) as (here, there):
        told = []
        keys, begins = _core.keys_by_partition(np.arange(400), 2)
        ids = keys[: begins[1] + 1]  # the first shard's keys, and one of the other's
        for var in (here, there):
            with pytest.raises(StoreFullError, match=r"var\.part0 of 2") as refused:
                var.apply_gradients(ids, np.ones((ids.size, 3), np.float32))
            told.append(str(refused.value))
            assert var.total_count() == (0, 3)
            train_a_little(var)
        assert told[1].startswith(told[0])
        assert "on node 127.0.0.1" in told[1]
        assert_same(there.export(), here.export())


@pytest.mark.long
def test_many_threads_may_use_a_variable() -> None:
    with local_and_sharded(2) as (here, there):
        failed: list[BaseException] = []

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            try:
                for _ in range(20):
                    ids = random.integers(0, 500, 300)
                    assert there.lookup(ids, train=True).shape == (300, 3)
                    there.apply_gradients(ids, np.ones((300, 3), np.float32))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        for seed in range(12):
            random = np.random.default_rng(seed)
            for _ in range(20):
                here.apply_gradients(random.integers(0, 500, 300), np.ones((300, 3), np.float32))
        keys = here.export()["keys"]
        np.testing.assert_array_equal(there.export()["keys"], keys)
        np.testing.assert_array_equal(there.get_frequency(keys), here.get_frequency(keys))


@pytest.mark.long
def test_a_closed_variable_stays_closed() -> None:
    with local_and_sharded(2) as (_, there):
        there.close()
        there.close()
        for use in (lambda: there.lookup([1]), there.total_count):
            with pytest.raises(ClosedError, match=r"var\.part0 of 2 is closed"):
                use()


def test_a_variable_that_goes_out_of_scope_frees_its_memory(ray: Any, tmp_path: Path) -> None:
    var = _on_pmem(tmp_path)
    var.lookup([1, 2, 3], train=True)
    wait_until_taken(ray, 2 / 4)
    del var
    gc.collect()
    wait_until_taken(ray, 0)


def test_a_variable_that_keeps_its_files_may_be_closed_twice(tmp_path: Path) -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, tmp_path],
        [32 * 48, MIB],
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )

    def make() -> es.EmbeddingVariable:
        option = es.EmbeddingVariableOption(storage_option=storage)
        adam = es.optimizers.Adam(0.1)
        return es.get_embedding_variable("var", 3, optimizer=adam, ev_option=option, shards=1)

    with make() as var:
        train_a_little(var)
        var.close()
    with make() as again:
        assert again.total_count() == (3, 3)


def test_a_shard_that_cant_be_made_leaves_no_actor(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not/there can't be made"):
        _on_pmem(tmp_path / "not" / "there")
    wait_until_taken(ray, 0)


def test_bad_numbers_of_shards_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="shards must be at least 1"):
        es.get_embedding_variable("var", 3, shards=0)
    with pytest.raises(InvalidArgumentError, match="partition_num must be left at 1"):
        es.get_embedding_variable("var", 3, partition_num=2, shards=2)


@pytest.mark.long
def test_shards_in_pmem_need_nodes_with_enough_of_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDeviceError, match=r"needs 1.5 GiB of PMem, and .* than 1 "):
        _on_pmem(tmp_path, 1536 * MIB)
    with _on_pmem(tmp_path, 64 * MIB) as var:
        train_a_little(var)
        assert var.total_count() == (3, 3)
