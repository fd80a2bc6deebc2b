"""Checkpoints in a durable pool: restore_persisted() brings back what persist() was given."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_table import (
    CACHE_ROWS,
    DIM,
    KEYS,
    POOL_BYTES,
    contents,
    make_durable_table,
    make_table,
    rows_in_dram_after,
    rows_per_tier,
    train,
)
from engine_storage import GPU, skip_without_library
from forked import forked
from programs import run_program

import embstore as es
from embstore import files
from embstore.checkpoint.arguments import checkpoint_locks
from embstore.checkpoint.manifest import Manifest
from embstore.checkpoint.persist import checkpoints as checkpoint_directories
from embstore.checkpoint.persist import persisting
from embstore.checkpoint.persist.writer import PersistWriter, finish_persists
from embstore.checkpoint.training import tables as training_tables
from embstore.errors import (
    CheckpointError,
    ClosedError,
    EmbStoreError,
    InUseError,
    InvalidArgumentError,
    StorageError,
    StoreFullError,
)
from embstore.options import TIER_KINDS, TierKind
from embstore.table.making import VariableRequest, make_variable
from embstore.table.shard import LocalShard, Shard, ShardSpec

DURABLE_TYPES = (
    es.StorageType.DRAM_PMEM,
    es.StorageType.DRAM_PMEM_SSDHASH,
    es.StorageType.HBM_DRAM_PMEM,
    es.StorageType.HBM_DRAM_PMEM_SSDHASH,
)
# The durable types without a tier on SSD.
POOL_TYPES = (es.StorageType.DRAM_PMEM, es.StorageType.HBM_DRAM_PMEM)


@pytest.fixture(params=DURABLE_TYPES, ids=lambda kind: kind.name)
def storage_type(request: pytest.FixtureRequest) -> es.StorageType:
    kind: es.StorageType = request.param
    skip_without_library(kind)
    return kind


@pytest.fixture(params=POOL_TYPES, ids=lambda kind: kind.name)
def pool_type(request: pytest.FixtureRequest) -> es.StorageType:
    kind: es.StorageType = request.param
    skip_without_library(kind)
    return kind


def test_a_restored_checkpoint_is_the_table_at_that_batch_bit_for_bit(
    place: Path, storage_type: es.StorageType
) -> None:
    with make_durable_table(place, storage_type=storage_type) as variable:
        train(variable, range(80))
        rows = rows_per_tier(variable)
        assert len(rows) == len(TIER_KINDS[storage_type])
        above = TIER_KINDS[storage_type].index(TierKind.PMEM)
        assert rows[:above] == [CACHE_ROWS] * above
        assert min(rows[above:]) > 60
        assert es.persist([variable], place / "checkpoints", global_step=80) == 1
        train(variable, range(80, 95))  # lost
    with make_durable_table(place, storage_type=storage_type) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 80
        assert sum(rows_per_tier(variable)) == sum(rows)
        assert contents(variable) == rows_in_dram_after(80)
        train(variable, range(80, 110))
        assert contents(variable) == rows_in_dram_after(110)


def test_each_checkpoint_that_is_kept_can_be_restored_and_the_others_are_gone(
    place: Path, pool_type: es.StorageType
) -> None:
    with make_durable_table(place, storage_type=pool_type) as variable:
        for step in range(0, 30, 5):
            train(variable, range(step, step + 5))
            es.persist([variable], place / "checkpoints", global_step=step + 5, keep=3)
        assert es.persisted(place / "checkpoints") == [4, 5, 6]
    with make_durable_table(place, storage_type=pool_type) as variable:
        with pytest.raises(CheckpointError, match="has no checkpoint 3, only 4, 5, 6"):
            es.restore_persisted([variable], place / "checkpoints", 3)
        assert es.restore_persisted([variable], place / "checkpoints", 6) == 30
        assert contents(variable) == rows_in_dram_after(30)
        assert es.restore_persisted([variable], place / "checkpoints", 4) == 20
        assert contents(variable) == rows_in_dram_after(20)
        assert es.persisted(place / "checkpoints") == [4]  # a restore gives up newer ones
        train(variable, range(20, 26))
        assert es.persist([variable], place / "checkpoints", global_step=26) == 7
    with make_durable_table(place, storage_type=pool_type) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 26
        assert contents(variable) == rows_in_dram_after(26)


def test_rows_that_were_removed_stay_away_and_those_removed_later_come_back(
    place: Path, storage_type: es.StorageType
) -> None:
    with make_durable_table(place, storage_type=storage_type) as variable:
        train(variable, range(30))
        keys = variable.export()["keys"]
        es.persist([variable], place / "checkpoints")
        variable.remove(keys[:50])
        es.persist([variable], place / "checkpoints", keep=2)
        variable.remove(keys[50:60])
    with make_durable_table(place, storage_type=storage_type) as variable:
        es.restore_persisted([variable], place / "checkpoints", 2)
        assert variable.export()["keys"].tolist() == keys[50:].tolist()
        es.restore_persisted([variable], place / "checkpoints", 1)
        assert contents(variable) == rows_in_dram_after(30)


def test_a_checkpoint_evicts_as_a_save_does(place: Path, storage_type: es.StorageType) -> None:
    option = es.GlobalStepEvict(5)
    with (
        make_durable_table(place, storage_type=storage_type, evict=option) as variable,
        make_table("like", evict=option) as like,
    ):
        train(variable, range(20))
        train(like, range(20))
        es.save(place / "save", [like], 20)
        wanted = contents(like)
        rows, _ = variable.total_count()
        es.persist([variable], place / "checkpoints", global_step=20)
        assert contents(variable) == wanted
        assert variable.total_count()[0] < rows
        train(variable, range(20, 23))  # lost
    with make_durable_table(place, storage_type=storage_type) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == wanted


def test_without_a_step_each_variable_of_a_checkpoint_evicts_by_its_own_updates(
    place: Path,
) -> None:
    option = es.GlobalStepEvict(5)
    often = make_durable_table(place, "often", evict=option)
    seldom = make_durable_table(place, "seldom", evict=option)
    with often, seldom:
        train(often, range(20))
        seldom.apply_gradients([1], np.ones((1, DIM), np.float32))
        es.persist([often, seldom], place / "checkpoints")
        assert seldom.total_count()[0] == 1


@pytest.mark.parametrize(
    "filter_option",
    [es.CounterFilter(3), es.CBFFilter(3, 1000, 0.01, np.uint16)],
    ids=["counter", "sketch"],
)
def test_waiting_keys_come_back(place: Path, pool_type: es.StorageType, filter_option: Any) -> None:
    with make_durable_table(place, storage_type=pool_type, filter=filter_option) as variable:
        train(variable, range(20))
        es.persist([variable], place / "checkpoints", global_step=20)
        waiting = variable.stats()["waiting_keys"]
        assert waiting > 0
        train(variable, range(20, 30))
    with make_durable_table(place, storage_type=pool_type, filter=filter_option) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert variable.stats()["waiting_keys"] == waiting
        train(variable, range(20, 50))
        assert contents(variable) == rows_in_dram_after(50, filter=filter_option)


@pytest.mark.parametrize(
    "optimizer", [es.optimizers.Adam(0.01), es.optimizers.Ftrl(0.1), es.optimizers.SGD(0.1)]
)
def test_a_restored_optimizer_goes_on_from_its_state_at_the_checkpoint(
    place: Path, pool_type: es.StorageType, optimizer: Any
) -> None:
    with make_durable_table(place, storage_type=pool_type, optimizer=optimizer) as variable:
        train(variable, range(20))
        variable.learning_rate = 0.05
        es.persist([variable], place / "checkpoints")
        train(variable, range(20, 25))
        variable.learning_rate = 0.5
    with (
        make_durable_table(place, storage_type=pool_type, optimizer=optimizer) as variable,
        make_table("p", optimizer=optimizer) as other,
    ):
        assert es.restore_persisted([variable], place / "checkpoints") == 20
        assert variable.learning_rate == 0.05
        train(variable, range(20, 40))
        train(other, range(20))
        other.learning_rate = 0.05
        train(other, range(20, 40))
        assert contents(variable) == contents(other)


def test_one_checkpoint_covers_all_partitions_of_several_variables(
    place: Path, storage_type: es.StorageType
) -> None:
    def pair() -> tuple[es.EmbeddingVariable, es.EmbeddingVariable]:
        a = make_durable_table(place, "a", storage_type, partition_num=3)
        return a, make_durable_table(place, "b", storage_type)

    a, b = pair()
    with a, b:
        train(a, range(60))
        train(b, range(70))
        es.persist([a, b], place / "checkpoints")
        train(a, range(60, 64))
        with (
            make_durable_table(place, "c", storage_type) as c,
            pytest.raises(InvalidArgumentError, match="persist the same ones together"),
        ):
            es.persist([a, c], place / "checkpoints")
    a, b = pair()
    with a, b:
        es.restore_persisted([b, a], place / "checkpoints")
        assert contents(a) == rows_in_dram_after(60)
        assert contents(b) == rows_in_dram_after(70)
        train(a, range(60, 64))
        assert contents(a) == rows_in_dram_after(64)


def test_a_row_that_did_not_change_is_not_written_again(
    place: Path, pool_type: es.StorageType
) -> None:
    with make_durable_table(place, storage_type=pool_type, cache_rows=KEYS) as variable:
        train(variable, range(30))
        es.persist([variable], place / "checkpoints")
        pool = place / "table.pool"
        before = pool.read_bytes()
        es.persist([variable], place / "checkpoints")
        assert pool.read_bytes() == before
        ids: Any = np.array([5], np.int64)
        gradients: Any = np.ones((1, DIM), np.float32)
        if variable.ev_option.storage_option.has_hbm:  # the row is changed in HBM
            ids = es.DeviceArray(ids, device=GPU)
            gradients = es.DeviceArray(gradients, device=GPU)
        variable.apply_gradients(ids, gradients)
        es.persist([variable], place / "checkpoints")
        after = np.frombuffer(pool.read_bytes(), np.uint8)
        changed = np.flatnonzero(after != np.frombuffer(before, np.uint8))
        assert 0 < changed[-1] - changed[0] < 256  # one row, in a new slot


def test_the_cache_is_full_before_a_checkpoint_is_advised(
    place: Path, pool_type: es.StorageType
) -> None:
    with make_durable_table(place, storage_type=pool_type) as variable:
        assert not es.should_persist([variable])
        train(variable, range(20))
        variable.drain()
        assert es.should_persist([variable])


def test_no_checkpoint_is_advised_while_one_is_pending(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_finish = threading.Event()
    finish = PersistWriter._finish

    def when_it_may(writer: PersistWriter, *checkpoint: Any) -> None:
        assert may_finish.wait(30)
        finish(writer, *checkpoint)

    monkeypatch.setattr(PersistWriter, "_finish", when_it_may)
    with make_durable_table(place) as variable:
        train(variable, range(20))
        variable.drain()
        es.persist([variable], place / "checkpoints", 1)
        try:
            assert not es.should_persist([variable])
            assert es.persisted(place / "checkpoints") == []
        finally:
            may_finish.set()
        finish_persists(variable)
        assert es.should_persist([variable])
        assert es.persisted(place / "checkpoints") == [1]


# --- Failures


def test_a_killed_process_leaves_its_last_checkpoint(
    place: Path, storage_type: es.StorageType
) -> None:
    program = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        import embstore as es
        from durable_table import make_durable_table, train
        place = Path({str(place)!r})
        variable = make_durable_table(place, storage_type=es.StorageType.{storage_type.name})
        train(variable, range(45))
        es.persist([variable], place / "checkpoints", global_step=45)
        train(variable, range(45, 50))
        es.persist([variable], place / "checkpoints", 1, global_step=50)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = run_program(program)
    assert ended.returncode == -9, ended.stderr
    with make_durable_table(place, storage_type=storage_type) as variable:
        step = es.restore_persisted([variable], place / "checkpoints")
        assert step in (45, 50)
        assert contents(variable) == rows_in_dram_after(step)


def test_rows_of_an_earlier_run_are_neither_lost_nor_mixed_with_new_ones(
    place: Path, storage_type: es.StorageType
) -> None:
    with make_durable_table(place, storage_type=storage_type) as variable:
        train(variable, range(50))
        es.persist([variable], place / "checkpoints")
    with make_durable_table(place, storage_type=storage_type) as variable:
        assert variable.total_count() == (0, DIM)
        with pytest.raises(StorageError, match=r"table\.pool: holds checkpoints of an earlier run"):
            train(variable, range(1))
        with pytest.raises(EmbStoreError, match="restore_persisted"):
            es.persist([variable], place / "others")
    with make_durable_table(place, storage_type=storage_type) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(50)
    with make_durable_table(place, storage_type=storage_type) as variable:
        es.discard_persisted([variable])
        train(variable, range(50, 90))
        with pytest.raises(InvalidArgumentError, match="lists checkpoints"):
            es.persist([variable], place / "checkpoints")
        es.persist([variable], place / "others")
        after = contents(variable)
    with make_durable_table(place, storage_type=storage_type) as variable:
        es.restore_persisted([variable], place / "others")
        assert contents(variable) == after


def test_a_table_that_awaits_its_restore_replaces_no_save(place: Path) -> None:
    with make_durable_table(place) as variable, make_table("other") as other:
        train(variable, range(50))
        train(other, range(50))
        es.persist([variable], place / "checkpoints")
        es.save(place / "saved", [variable, other], 50)
    with make_durable_table(place) as variable, make_table("other") as other:
        refused = pytest.raises(StorageError, match=r"pool of table holds .* an earlier run; take")
        with refused:
            es.save(place / "saved", [other, variable], 51)
        with refused:
            es.write_rows(place / "rows", variable)
        assert not (place / "rows").exists()
        es.discard_persisted([variable])
        es.restore(place / "saved", [variable, other])
        assert contents(variable) == rows_in_dram_after(50)
        es.save(place / "saved", [variable, other], 50)


@pytest.mark.parametrize("partition_num", [1, 2])
def test_a_variable_without_restores_refuses_the_pool_of_an_earlier_run(
    place: Path, storage_type: es.StorageType, partition_num: int
) -> None:
    def opened(*, restores: bool) -> es.EmbeddingVariable:
        return make_durable_table(
            place, storage_type=storage_type, partition_num=partition_num, restores=restores
        )

    with opened(restores=False) as variable:  # the pool is new
        train(variable, range(20))
        es.persist([variable], place / "checkpoints")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"table: its pool in .*restores=True.*discard"):
            opened(restores=False)
    with opened(restores=True) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(20)
    with opened(restores=True) as variable:
        es.discard_persisted([variable])
    with opened(restores=False) as variable:
        assert variable.total_count() == (0, DIM)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_a_pool_of_another_number_of_partitions_is_refused(
    place: Path, first: int, second: int
) -> None:
    with make_durable_table(place, partition_num=first) as variable:
        train(variable, range(20))
        es.persist([variable], place / "checkpoints")
    for restores in (False, True):
        with pytest.raises(InvalidArgumentError, match=r"checkpoint-.*partition_num"):
            make_durable_table(place, partition_num=second, restores=restores)
    with make_durable_table(place, partition_num=first) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(20)


def test_checkpoints_stay_if_their_list_is_not_found(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints")
    (place / "checkpoints").rename(place / "elsewhere")
    with make_durable_table(place) as variable, pytest.raises(StorageError, match="an earlier run"):
        train(variable, range(3))
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], place / "elsewhere")
        assert contents(variable) == rows_in_dram_after(10)


def test_checkpoints_stay_although_their_directory_lists_others_now(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints")
    (place / "checkpoints").rename(place / "elsewhere")
    (place / "other").mkdir()
    with make_durable_table(place / "other") as other:
        es.persist([other], place / "checkpoints")
    with pytest.raises(StorageError, match="an earlier run"):
        make_durable_table(place, restores=False)
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], place / "elsewhere")
        assert contents(variable) == rows_in_dram_after(10)


@pytest.mark.parametrize("runs", [1, 2])
def test_variables_of_one_checkpoint_are_persisted_together_or_elsewhere(
    place: Path, runs: int
) -> None:
    """Otherwise the last checkpoint of the variables that are left out would be lost."""

    def opened(name: str) -> es.EmbeddingVariable:
        return make_durable_table(place, name=name)

    checkpoints, others = place / "checkpoints", place / "others"
    a, b = opened("a"), opened("b")
    with a, b:
        for variable in (a, b):
            train(variable, range(10))
        es.persist([a, b], checkpoints, global_step=10)
        if runs == 2:
            a.close()
            b.close()
            b = opened("b")
            es.restore_persisted([b], checkpoints)
        train(b, range(10, 20))
        with b:
            with pytest.raises(InvalidArgumentError, match=r"variables: .*checkpoints has a too"):
                es.persist([b], checkpoints)
            for step in (20, 30):
                es.persist([b], others, global_step=step)
    assert (es.persisted(checkpoints), es.persisted(others)) == ([1], [2])
    with opened("a") as a, opened("b") as b:
        assert es.restore_persisted([a], checkpoints) == 10
        assert contents(a) == rows_in_dram_after(10)
        assert es.restore_persisted([b], others) == 30
        assert contents(b) == rows_in_dram_after(20)


def test_a_checkpoint_of_another_pool_is_refused(place: Path) -> None:
    (place / "a").mkdir()
    (place / "b").mkdir()
    for folder in ("a", "b"):
        with make_durable_table(place / folder) as variable:
            train(variable, range(10))
            es.persist([variable], place / folder / "checkpoints")
    with (
        make_durable_table(place / "a") as variable,
        pytest.raises(CheckpointError, match=r"aren't in .*table\.pool"),
    ):
        es.restore_persisted([variable], place / "b" / "checkpoints")
    with make_durable_table(place / "a") as variable:
        with pytest.raises(CheckpointError):
            es.restore_persisted([variable], place / "b" / "checkpoints")
        es.restore_persisted(
            [variable], place / "a" / "checkpoints"
        )  # a restore may be tried again
        assert contents(variable) == rows_in_dram_after(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 5}, "dim"),
        ({"optimizer": es.optimizers.SGD(0.1)}, "SGD|optimizer"),
        ({"pool_bytes": POOL_BYTES // 2}, "storage_size"),
    ],
)
def test_a_pool_of_another_dim_optimizer_or_size_is_refused_and_stays_as_it_was(
    place: Path, options: dict[str, Any], message: str
) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints")
    with pytest.raises(EmbStoreError, match=message):
        make_durable_table(place, **options)
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(10)


def test_two_variables_of_one_directory_have_pools_of_their_own(place: Path) -> None:
    with make_durable_table(place, "a") as a, make_durable_table(place, "b") as b:
        train(a, range(10))
        train(b, range(15))
        es.persist([a], place / "of a")
        es.persist([b], place / "of b")
        with pytest.raises(InUseError, match="in use"):
            make_durable_table(place, "a")
    with make_durable_table(place, "a") as a, make_durable_table(place, "b") as b:
        es.restore_persisted([b], place / "of b")
        es.restore_persisted([a], place / "of a")
        assert contents(a) == rows_in_dram_after(10)
        assert contents(b) == rows_in_dram_after(15)


def apply_ones(variable: es.EmbeddingVariable, ids: Any) -> None:
    """Applies gradients of ones, on the GPU if the variable has HBM."""
    ones: Any = np.ones((len(ids), DIM), np.float32)
    if variable.ev_option.storage_option.has_hbm:
        ids = es.DeviceArray(ids, device=GPU)
        ones = es.DeviceArray(ones, device=GPU)
    variable.apply_gradients(ids, ones)


def fill(variable: es.EmbeddingVariable, first_key: int) -> int:
    """Trains new keys until there is no room. Returns the first key that has none."""
    message = r"table\.pool.*persist, which lets older rows go, or raise storage_size"
    first_of_batches = itertools.count(first_key, 64)

    def train_until_refused() -> None:
        for first in first_of_batches:
            nonlocal first_key
            first_key = first
            apply_ones(variable, np.arange(first, first + 64))

    with pytest.raises(StoreFullError, match=message):
        train_until_refused()
    return first_key


def test_a_full_pool_refuses_a_batch_before_anything_changes_and_goes_on_when_it_is_larger(
    place: Path, pool_type: es.StorageType
) -> None:
    size = 2 << 20
    with make_durable_table(place, storage_type=pool_type, pool_bytes=size) as variable:
        end = fill(variable, 0)
        assert end > 1000
        before = contents(variable)
        with pytest.raises(StoreFullError):
            apply_ones(variable, np.arange(end, end + 64))
        assert contents(variable) == before
        es.persist([variable], place / "checkpoints")  # always possible
        # Every slot belongs to the checkpoint, so an old row can't change either.
        with pytest.raises(StoreFullError):
            apply_ones(variable, np.arange(end))
        assert contents(variable) == before
    with make_durable_table(place, storage_type=pool_type, pool_bytes=2 * size) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == before
        apply_ones(variable, np.arange(end))
        assert fill(variable, end) > end
        es.persist([variable], place / "checkpoints")


def test_a_checkpoint_whose_file_cannot_be_written_leaves_the_one_before(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints", global_step=10)
        train(variable, range(10, 20))
        unfinished = place / "checkpoints" / ".checkpoint-00000002.unfinished"
        unfinished.write_text("in the way")
        with pytest.raises(StorageError, match=r"checkpoint-00000002\.unfinished"):
            es.persist([variable], place / "checkpoints", global_step=20)
        assert es.persisted(place / "checkpoints") == [1]
        unfinished.unlink()
        train(variable, range(20, 30))
        es.persist([variable], place / "checkpoints", global_step=30)
    with make_durable_table(place) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 30
        assert contents(variable) == rows_in_dram_after(30)


@contextlib.contextmanager
def full_medium() -> Iterator[None]:
    """Makes every write of a checkpoint's manifest fail as on a full medium."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "write", full)
        yield


NO_ROOM = "checkpoint-00000002: can't be written: No"


def test_the_error_of_a_checkpoint_without_room_is_raised_once(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints", global_step=10)
        train(variable, range(10, 20))
        with full_medium(), pytest.raises(StorageError, match=NO_ROOM):
            es.persist([variable], place / "checkpoints")
        assert es.persist([variable], place / "checkpoints", global_step=20) == 3
    with make_durable_table(place) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 20
        assert contents(variable) == rows_in_dram_after(20)


def test_closing_goes_on_though_the_medium_had_no_room_for_a_checkpoint(place: Path) -> None:
    variable = make_durable_table(place)
    train(variable, range(10))
    es.persist([variable], place / "checkpoints", global_step=10)
    train(variable, range(10, 20))
    with full_medium():
        es.persist([variable], place / "checkpoints", 1)
        with pytest.raises(StorageError, match=NO_ROOM):
            variable.close()
    with make_durable_table(place) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 10
        assert contents(variable) == rows_in_dram_after(10)


def test_a_checkpoint_counts_although_an_older_one_cant_be_removed(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = place / "checkpoints" / ".checkpoint-00000001.removed"
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints", global_step=10)
        (in_the_way / "file").mkdir(parents=True)
        for number in (2, 3):
            train(variable, range(10 * number - 10, 10 * number))
            assert es.persist([variable], place / "checkpoints", global_step=10 * number) == number
            assert es.persisted(place / "checkpoints") == [1, number]
        assert "checkpoint-00000001: can't be written" in caplog.text
        shutil.rmtree(in_the_way)
        train(variable, range(30, 40))
        es.persist([variable], place / "checkpoints", global_step=40)
        assert es.persisted(place / "checkpoints") == [4]
    with make_durable_table(place) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 40
        assert contents(variable) == rows_in_dram_after(40)


class PersistComesFirst:
    """Starts a persist just before a restore takes its locks. The persist stays pending until it is
    waited for."""

    def __init__(
        self, patch: pytest.MonkeyPatch, variable: es.EmbeddingVariable, checkpoints: Path
    ) -> None:
        self.may_finish = threading.Event()
        finish_in_background, finish = PersistWriter._finish, PersistWriter.finish

        def when_it_may(writer: PersistWriter, *checkpoint: Any) -> None:
            assert self.may_finish.wait(30)
            finish_in_background(writer, *checkpoint)

        def waited_for(writer: PersistWriter) -> None:
            self.may_finish.set()
            finish(writer)

        def after_a_persist(
            variables: list[es.EmbeddingVariable],
        ) -> contextlib.AbstractContextManager[None]:
            for module in (persisting, training_tables):
                patch.setattr(module, "checkpoint_locks", checkpoint_locks)
            self.may_finish.clear()
            train(variable, range(10, 20))
            es.persist([variable], checkpoints, 1, global_step=20, keep=3)
            return checkpoint_locks(variables)

        patch.setattr(PersistWriter, "_finish", when_it_may)
        patch.setattr(PersistWriter, "finish", waited_for)
        for module in (persisting, training_tables):
            patch.setattr(module, "checkpoint_locks", after_a_persist)


def test_a_persist_that_comes_in_before_a_restore_is_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints", global_step=10)
        first = PersistComesFirst(monkeypatch, variable, place / "checkpoints")
        try:
            assert es.restore_persisted([variable], place / "checkpoints") == 20
        finally:
            first.may_finish.set()
        assert contents(variable) == rows_in_dram_after(20)
        assert es.persisted(place / "checkpoints") == [1, 2]


def test_a_persist_that_comes_in_before_a_restore_of_a_training_is_given_up(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_durable_table(place) as variable, es.Checkpoints(place / "trained") as checkpoints:
        train(variable, range(10))
        with checkpoints.checkpoint(10, [variable]):
            pass
        first = PersistComesFirst(monkeypatch, variable, place / "trained" / "pools")
        try:
            found = checkpoints.restore([variable])
        finally:
            first.may_finish.set()
        assert found is not None
        assert found.step == 10
        assert contents(variable) == rows_in_dram_after(10)
        assert es.persisted(place / "trained" / "pools") == [1]


@pytest.mark.parametrize("fails_at", ["the name", "the sync"])
def test_all_checkpoints_stay_listed_if_a_newer_one_cant_be_taken_off_the_list(
    place: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    checkpoints = place / "checkpoints"
    in_the_way = checkpoints / ".checkpoint-00000003.removed"
    synced: list[Path] = []

    def fails_once(path: Path) -> None:
        synced.append(path)
        if len(synced) == 2:
            raise OSError(errno.EIO, "lost", str(path))

    with make_durable_table(place) as variable:
        for number in (1, 2, 3):
            train(variable, range(10 * number - 10, 10 * number))
            es.persist([variable], checkpoints, global_step=10 * number, keep=3)
        if fails_at == "the name":
            (in_the_way / "file").mkdir(parents=True)
        else:
            monkeypatch.setattr(files, "sync", fails_once)
        with pytest.raises(StorageError, match="checkpoint"):
            es.restore_persisted([variable], checkpoints, 1)
        assert es.persisted(checkpoints) == [1, 2, 3]
        assert contents(variable) == rows_in_dram_after(30)
        if fails_at == "the name":
            shutil.rmtree(in_the_way)
        for number in (3, 2, 1):
            assert es.restore_persisted([variable], checkpoints, number) == 10 * number
            assert contents(variable) == rows_in_dram_after(10 * number)
        assert es.persisted(checkpoints) == [1]


def test_a_newer_checkpoint_that_cant_be_listed_again_keeps_no_other_off_the_list(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = place / "checkpoints"
    with make_durable_table(place) as variable:
        for number in (1, 2, 3):
            train(variable, range(10 * number - 10, 10 * number))
            es.persist([variable], checkpoints, global_step=10 * number, keep=3)

        def cant(*_: object) -> None:
            (checkpoints / "checkpoint-00000002" / "file").mkdir(parents=True)
            raise StorageError("the pool is lost")

        with monkeypatch.context() as patch:
            patch.setattr(LocalShard, "restore_persisted", cant)
            with pytest.raises(StorageError):
                es.restore_persisted([variable], checkpoints, 1)
        assert es.persisted(checkpoints) == [1, 2, 3]
        shutil.rmtree(checkpoints / "checkpoint-00000002")
        assert es.restore_persisted([variable], checkpoints, 3) == 30
        assert contents(variable) == rows_in_dram_after(30)


def test_a_checkpoint_of_a_variable_that_is_closed_meanwhile_raises_closed_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = PersistWriter.begin
    variable = make_durable_table(place)
    train(variable, range(10))
    es.persist([variable], place / "checkpoints", global_step=10)

    def closed_meanwhile(writer: PersistWriter, *arguments: Any, **options: Any) -> Any:
        begun = begin(writer, *arguments, **options)
        variable.close()
        return begun

    with monkeypatch.context() as patch:
        patch.setattr(PersistWriter, "begin", closed_meanwhile)
        with pytest.raises(ClosedError, match="closed"):
            es.persist([variable], place / "checkpoints", 1)
    assert [entry.name for entry in place.glob("checkpoints/.checkpoint-*")] == []
    with make_durable_table(place) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 10
        assert contents(variable) == rows_in_dram_after(10)


def test_a_persist_beside_the_end_of_a_close_raises_closed_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The persist finds no writer of the variable any more, but its directory is still in use."""
    close = checkpoint_directories.CheckpointDirectory.close
    refused: list[str] = []

    def persists_first(directory: checkpoint_directories.CheckpointDirectory) -> None:
        with pytest.raises(ClosedError) as error:
            es.persist([variable], place / "checkpoints")
        refused.append(str(error.value))
        close(directory)

    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints")
        monkeypatch.setattr(checkpoint_directories.CheckpointDirectory, "close", persists_first)
    assert len(refused) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_variable_that_is_closed_during_its_first_persist_keeps_no_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    take = PersistWriter._adopt
    variable = make_durable_table(place)
    train(variable, range(10))

    def closed_meanwhile(writer: PersistWriter, variables: list[es.EmbeddingVariable]) -> None:
        if when == "before":
            variable.close()
        take(writer, variables)
        if when == "after":
            variable.close()

    with monkeypatch.context() as patch:
        patch.setattr(PersistWriter, "_adopt", closed_meanwhile)
        with pytest.raises(ClosedError):
            es.persist([variable], place / "checkpoints")
    with make_durable_table(place) as again:
        train(again, range(10))
        assert es.persist([again], place / "checkpoints") == 1


@pytest.mark.timeout(20)  # an open that waits for a writer would wait for ever
def test_a_fifo_in_the_place_of_a_pools_note_is_refused_at_once(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))
        es.persist([variable], place / "checkpoints", global_step=10)
    (listed,) = place.glob("*.listed-at")
    note = listed.with_suffix(".begun-at")
    listed.unlink()
    os.mkfifo(note)
    with pytest.raises(CheckpointError, match="begun-at: is not a file"):
        make_durable_table(place)
    note.unlink()
    with make_durable_table(place) as variable:
        assert es.restore_persisted([variable], place / "checkpoints") == 10
        assert contents(variable) == rows_in_dram_after(10)


def test_damage_in_the_pool_is_reported(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(30))
        es.persist([variable], place / "checkpoints")
        address = variable.stats()["tiers"][1]
        assert address["path"] == str(place / "table.pool")
    content = bytearray((place / "table.pool").read_bytes())
    # The first record's floats lie 64 bytes into its slot.
    first = next(i for i in range(4096, len(content), 256) if any(content[i : i + 64]))
    content[first + 66] ^= 1
    (place / "table.pool").write_bytes(content)
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        (damaged,) = variable.damaged_keys()
        with pytest.raises(es.errors.DamagedRowsError, match=r"table\.pool"):
            variable.lookup([int(damaged)])


@pytest.mark.parametrize("partition_num", [1, 2])
def test_checkpoints_stay_if_an_older_one_cannot_be_restored(
    place: Path, partition_num: int
) -> None:
    """The damage is in the last partition of the last of two variables."""

    def opened() -> tuple[es.EmbeddingVariable, es.EmbeddingVariable]:
        a, b = (
            make_durable_table(place, name=name, cache_rows=KEYS, partition_num=partition_num)
            for name in "ab"
        )
        return a, b

    checkpoints = place / "checkpoints"
    a, b = opened()
    with a, b:
        for steps in (range(60), range(60, 200)):  # every row changes
            for variable in (a, b):
                train(variable, steps)
            es.persist([a, b], checkpoints, keep=2, global_step=steps[-1])
        wanted = [contents(variable) for variable in (a, b)]
    pool = max(place.glob("b*.pool"))
    content = bytearray(pool.read_bytes())
    for record in range(4096, len(content), 256):
        if int.from_bytes(content[record + 40 : record + 48], "little") == 1:  # its epoch
            content[record] ^= 1
    pool.write_bytes(content)
    for _ in range(2):
        a, b = opened()
        with a, b:
            for _ in range(2):
                with pytest.raises(CheckpointError, match=rf"b is left empty: .*{pool.name}"):
                    es.restore_persisted([a, b], checkpoints, 1)
                assert es.persisted(checkpoints) == [1, 2]
                for variable in (a, b):
                    assert variable.total_count()[0] == 0
                    with pytest.raises(StorageError, match="restore_persisted"):
                        train(variable, range(1))
                with pytest.raises(StorageError, match="restore_persisted"):
                    es.persist([a, b], checkpoints)
            assert es.restore_persisted([a, b], checkpoints) == 199
            assert [contents(variable) for variable in (a, b)] == wanted


def test_a_forked_child_can_neither_use_nor_harm_a_pool(place: Path) -> None:
    with make_durable_table(place) as variable:
        train(variable, range(10))

        def misuse() -> None:
            with pytest.raises(es.errors.ForkedError):
                es.persist([variable], place / "checkpoints")
            variable.close()

        assert forked(misuse) == 0
        train(variable, range(10, 20))
        es.persist([variable], place / "checkpoints", global_step=20)
    with make_durable_table(place) as variable:
        es.restore_persisted([variable], place / "checkpoints")
        assert contents(variable) == rows_in_dram_after(20)


# --- Arguments that are refused


@pytest.mark.parametrize(
    ("argument", "wrong", "message"),
    [
        ("persist_pending_window", -1, "at least 0"),
        ("persist_pending_window", 8, "at most 7"),
        ("keep", 0, "at least 1"),
        ("keep", 9, "at most 8"),
        ("global_step", -1, "at least 0"),
    ],
)
def test_arguments_that_no_checkpoint_can_have_are_refused_before_it_begins(
    place: Path, argument: str, wrong: int, message: str
) -> None:
    with make_durable_table(place) as variable:
        with pytest.raises(InvalidArgumentError, match=f"{argument} must be {message}"):
            es.persist([variable], place / "checkpoints", **{argument: wrong})
        assert not (place / "checkpoints").exists()


@pytest.mark.parametrize("wrong", [True, "1", 1.0, -1])
def test_a_wrong_checkpoint_number_gives_up_no_checkpoint(place: Path, wrong: Any) -> None:
    with make_durable_table(place) as variable:
        for _ in range(2):
            es.persist([variable], place / "checkpoints", keep=2)
        with pytest.raises(InvalidArgumentError, match="checkpoint_id must be"):
            es.restore_persisted([variable], place / "checkpoints", wrong)
        assert es.persisted(place / "checkpoints") == [1, 2]


def test_durability_needs_pmem_below_dram_and_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="durability: DRAM_SSDHASH has no tier of PMem"):
        es.StorageOption(
            storage_type=es.StorageType.DRAM_SSDHASH, storage_path=tmp_path, durability="checkpoint"
        )
    with pytest.raises(InvalidArgumentError, match='None or "checkpoint"'):
        es.StorageOption(
            storage_type=es.StorageType.DRAM_PMEM, storage_path=tmp_path, durability="always"
        )
    with pytest.raises(InvalidArgumentError, match="storage_path is missing"):
        es.StorageOption(storage_type=es.StorageType.DRAM_PMEM, durability="checkpoint")
    with pytest.raises(InvalidArgumentError, match="keep_files: durability keeps"):
        es.StorageOption(
            storage_type=es.StorageType.DRAM_PMEM_SSDHASH,
            storage_path=tmp_path,
            ssdhash_option=es.SSDHashOption(keep_files=True),
            durability="checkpoint",
        )
    with pytest.raises(InvalidArgumentError, match=r"pool has \d+ places.*make the pool larger"):
        make_durable_table(
            tmp_path, storage_type=es.StorageType.DRAM_PMEM_SSDHASH, pool_bytes=4350 * 256
        )
    with (
        make_table("plain") as variable,
        pytest.raises(InvalidArgumentError, match="keeps no checkpoints in its tiers"),
    ):
        es.persist([variable], tmp_path / "checkpoints")


def test_a_leveldb_tier_keeps_no_checkpoints_and_the_error_names_the_type_that_does(
    tmp_path: Path,
) -> None:
    for above in ("DRAM_PMEM", "HBM_DRAM_PMEM"):
        kind = es.StorageType[f"{above}_LEVELDB"]
        message = rf"durability: {kind.name} .*; use {above}_SSDHASH.*es\.save\(\)"
        with pytest.raises(InvalidArgumentError, match=message):
            es.StorageOption(kind, tmp_path, durability="checkpoint")


def test_the_core_makes_no_pool_above_a_leveldb_tier(place: Path) -> None:
    def make_above_leveldb(spec: ShardSpec) -> Shard:
        dram, pool, files = spec.tiers
        below = replace(files, kind=TierKind.LEVELDB)
        return LocalShard(replace(spec, tiers=[dram, pool, below]))

    storage = es.StorageOption(
        es.StorageType.DRAM_PMEM_SSDHASH,
        place,
        [CACHE_ROWS * 32, POOL_BYTES],
        durability="checkpoint",
    )
    option = es.EmbeddingVariableOption(storage_option=storage)
    with pytest.raises(
        InvalidArgumentError, match="below a PMEM_POOL there can be SSDHASH, not LEVELDB"
    ):
        make_variable(VariableRequest("table", DIM, option), 1, make_above_leveldb)
    assert not list(place.iterdir())
