"""Checkpoints of a durable pool with a tier on SSD below it: each covers every tier."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import durable_table
import numpy as np
import pytest
from durable_table import (
    ROW_BYTES,
    contents,
    make_table,
    pool_bytes_above_ssd,
    rows_in_dram_after,
    rows_per_tier,
    train,
)
from engine_storage import skip_without_library

import embstore as es
from embstore.errors import EmbStoreError, StorageError, StoreFullError

ABOVE_SSD = es.StorageType.DRAM_PMEM_SSDHASH
durable = partial(durable_table.make_durable_table, storage_type=ABOVE_SSD)


@pytest.fixture(autouse=True)
def libraries() -> None:
    skip_without_library(ABOVE_SSD)


def test_rows_that_were_trained_more_often_lie_in_higher_tiers(place: Path) -> None:
    random = np.random.default_rng(4)
    with durable(place) as variable:
        for _ in range(60):
            ids = random.zipf(1.2, 40) % 300
            variable.apply_gradients(ids, np.ones((40, 4), np.float32))
            if random.random() < 0.2:
                es.persist([variable], place / "checkpoints")
        rows_per_tier(variable)
        keys = variable.export()["keys"]
        tiers = variable.lookup_tier(keys)
        frequency = variable.get_frequency(keys)
        assert {0, 1, 2} == set(tiers.tolist())
        for upper in (0, 1):
            assert frequency[tiers == upper].min() >= frequency[tiers == upper + 1].max()


def test_a_save_that_is_restored_into_a_pool_trains_on_as_if_it_had_not_moved(place: Path) -> None:
    with make_table("table") as other:
        train(other, range(50))
        es.save(place / "save", [other], 50)
    with durable(place) as variable:
        es.restore(place / "save", [variable])
        assert contents(variable) == rows_in_dram_after(50)
        dram, pool, ssd = rows_per_tier(variable)
        assert dram == 24
        assert pool > 60
        assert ssd > 100
        es.persist([variable], place / "checkpoints")
    with durable(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        train(variable, range(50, 54))
        assert contents(variable) == rows_in_dram_after(54)


def test_slots_that_checkpoints_hold_come_free_with_the_next(place: Path) -> None:
    """A pool too small for the changes between checkpoints raises an error and loses nothing."""
    refusals = []
    with durable(place) as variable:
        for step in range(400):
            if step % 20 == 0:
                es.persist([variable], place / "checkpoints", keep=6)
            try:
                train(variable, range(step, step + 1))
            except StoreFullError as error:
                refusals.append(str(error))
                es.persist([variable], place / "checkpoints")
                train(variable, range(step, step + 1))
        assert contents(variable) == rows_in_dram_after(400)
    assert refusals
    assert all("persist, which lets older rows go, or raise" in refusal for refusal in refusals)


def test_a_variable_without_checkpoints_refuses_files_that_have_some(place: Path) -> None:
    with durable(place) as variable:
        train(variable, range(50))
        variable.drain()  # so that some rows lie in files
        es.persist([variable], place / "checkpoints")
    own = place / "table.ssdhash"
    with pytest.raises(EmbStoreError, match=own.name):
        make_table("table", es.StorageOption(ABOVE_SSD, [None, str(place), str(place)]))
    with durable(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(50)


def test_a_pool_of_an_earlier_version_above_leveldb_is_refused_and_says_where_its_rows_are(
    place: Path,
) -> None:
    pool = place / "table.pool"
    pool.write_bytes(b"ESPMROWS" + bytes(9000))
    rows = place / "table.leveldb" / "000005.ldb"
    rows.parent.mkdir()
    rows.write_bytes(b"rows")
    with pytest.raises(
        StorageError, match=r"table\.pool: is of an earlier version.*es\.save\(\).*\.leveldb"
    ):
        durable(place)
    assert pool.read_bytes() == b"ESPMROWS" + bytes(9000)
    assert rows.read_bytes() == b"rows"


def test_missing_files_are_reported_and_the_pool_stays(place: Path) -> None:
    with durable(place) as variable:
        train(variable, range(50))
        variable.drain()  # so that some rows lie in files
        es.persist([variable], place / "checkpoints")
    own = place / "table.ssdhash"
    own.rename(place / "elsewhere")
    with pytest.raises(StorageError, match=own.name):
        durable(place)
    (place / "elsewhere").rename(own)
    with durable(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(50)


def test_a_checkpoint_is_advised_before_the_pool_runs_out_of_slots(place: Path) -> None:
    size = pool_bytes_above_ssd(24) + 300 * 256
    with (
        durable(place, pool_bytes=size) as variable,
        durable(place, "another, whose cache is never full") as other,
    ):
        steps = 0
        while not es.should_persist([variable, other]):
            if steps % 20 == 0:
                es.persist([variable, other], place / "checkpoints", keep=8)
            train(variable, range(steps, steps + 1))  # never StoreFullError
            steps += 1
        es.persist([variable, other], place / "checkpoints")
        assert not es.should_persist([variable, other])
        train(variable, range(steps, steps + 5))
        assert contents(variable) == rows_in_dram_after(steps + 5)


def test_a_batch_as_large_as_the_pool_fits_if_the_pool_can_move_rows_down(place: Path) -> None:
    with durable(place) as variable, make_table("plain") as other:
        for first in range(0, 3000, 300):
            ids = np.arange(first, first + 300)
            for table in (variable, other):
                table.apply_gradients(ids, np.ones((300, 4), np.float32))
        assert contents(variable) == contents(other)
        before = contents(variable)
        ids = np.arange(500)
        message = r"table\.pool.*persist, which lets older rows go, or raise storage_size"
        with pytest.raises(StoreFullError, match=message):
            variable.apply_gradients(ids, np.ones((500, 4), np.float32))
        assert contents(variable) == before
        es.persist([variable], place / "checkpoints")
    with durable(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == before


def test_a_damaged_row_of_the_pool_keeps_no_other_from_being_demoted(place: Path) -> None:
    size = pool_bytes_above_ssd(24) + 200 * 256
    with durable(place, pool_bytes=size) as variable:
        train(variable, range(30))
        variable.drain()
        es.persist([variable], place / "checkpoints")
        keys = variable.export()["keys"]
        chosen = set(keys[variable.lookup_tier(keys) == 1][:40].tolist())
    pool = bytearray((place / "table.pool").read_bytes())
    for record in range(4096, len(pool), 256):
        if int.from_bytes(pool[record : record + 8], "little") in chosen:
            pool[record + 64] ^= 1  # a weight
    (place / "table.pool").write_bytes(pool)
    with durable(place, pool_bytes=size) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        new = np.arange(1000, 1200)
        for some in np.split(new, 10) * 3:  # more often than the others, which they push down
            variable.apply_gradients(np.repeat(some, 20), np.ones((400, 4), np.float32))
        variable.drain()
        damaged = variable.damaged_keys()
        assert damaged.size > 20
        assert chosen.issuperset(damaged.tolist())
        tiers = variable.lookup_tier(damaged)
        assert (tiers == 1).all()
        with pytest.raises(es.errors.DamagedRowsError, match=r"table\.pool"):
            variable.lookup(damaged[:1])
        assert variable.get_frequency(new).min() == 60
        assert variable.drop_damaged().tolist() == damaged.tolist()
        variable.drain()
        assert variable.damaged_keys().size == 0


@pytest.mark.parametrize("spare_rows", [0, 10])
def test_a_save_is_restored_into_tiers_that_it_fills_although_a_checkpoint_keeps_the_pool_short(
    place: Path, spare_rows: int
) -> None:
    ids = np.arange(1000)
    grads = np.ones((ids.size, 4), np.float32)
    in_dram, in_pool = 24, 78
    storage = es.StorageOption(
        storage_type=es.StorageType.DRAM_PMEM_SSDHASH,
        storage_path=str(place),
        storage_size=[
            in_dram * ROW_BYTES,
            pool_bytes_above_ssd(in_dram),
            (ids.size - in_dram - in_pool + spare_rows) * ROW_BYTES,
        ],
        durability="checkpoint",
    )
    with make_table("table", storage) as variable:
        for part in np.array_split(ids, 50):
            variable.apply_gradients(part, grads[: part.size])
        assert rows_per_tier(variable) == [in_dram, in_pool, ids.size - in_dram - in_pool]
        es.save(place / "save", [variable], 1)
        saved = contents(variable)
        es.persist([variable], place / "checkpoints")
        es.restore(place / "save", [variable])
        assert contents(variable) == saved
        assert rows_per_tier(variable) == [in_dram, in_pool, ids.size - in_dram - in_pool]
