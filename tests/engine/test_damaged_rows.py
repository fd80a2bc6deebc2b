"""Rows that a medium doesn't give back as they were written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_storage import variable_with_options
from numpy.typing import NDArray
from reporting_lock import ReportingLock

import embstore as es
from embstore.errors import DamagedRowsError, InvalidArgumentError

DIM = 256
COUNT = 3000  # six megabytes, so that most rows have left the tier's buffer
IDS = np.arange(COUNT)
ONES = np.ones((COUNT, DIM), np.float32)


class Damaged:
    """A variable most of whose rows lie in files, some bytes of which were flipped."""

    def __init__(self, directory: Path, partition_num: int = 1, flips: int = 3) -> None:
        self.directory = directory
        self.partition_num = partition_num
        self.var = self.open()
        self.var.apply_gradients(IDS, ONES)
        self.var.drain()
        self.before = self.var.export()
        flipped = self.flip(flips)
        self.keys = self.var.damaged_keys()
        assert self.keys.tolist() == flipped
        self.sound = np.setdiff1d(IDS, self.keys)

    def open(self, name: str = "var") -> es.EmbeddingVariable:
        return variable_with_options(
            name,
            DIM,
            es.StorageOption(es.StorageType.DRAM_SSDHASH, [None, self.directory], [64 * 2048]),
            initializer=es.initializers.RandomUniform(seed=5),
            optimizer=es.optimizers.Adagrad(0.1),
            partition_num=self.partition_num,
        )

    def flip(self, flips: int, beyond: int = 0) -> list[int]:
        """Flips a bit in each of `flips` rows in the oldest file that has rows. Returns their keys.

        beyond: bytes from a row's first weight to the byte that changes.
        """
        folder = next(tier["path"] for tier in self.var.stats()["tiers"] if tier["path"])
        file = min(Path(folder).glob("rows-*"))
        content = file.read_bytes()
        flipped: list[int] = []
        for key in np.flatnonzero(self.var.lookup_tier(IDS) == 1).tolist():
            if len(flipped) == flips:
                break
            place = content.find(self.before["values"][key].tobytes())
            if place < 0:
                continue
            flipped.append(key)
            with file.open("r+b") as opened:
                opened.seek(place + beyond)
                opened.write(bytes([content[place + beyond] ^ 1]))
        return flipped


@pytest.fixture(params=[1, 2], ids=["1 partition", "2 partitions"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Damaged]:
    (tmp_path / "rows").mkdir()
    damaged_table = Damaged(tmp_path / "rows", request.param)
    assert damaged_table.keys.size == 3
    assert damaged_table.keys.dtype == np.int64
    yield damaged_table
    damaged_table.var.close()


def refused(call: Callable[[], Any]) -> list[int]:
    """Returns the keys that the error names, in ascending order."""
    with pytest.raises(DamagedRowsError) as told:
        call()
    assert told.value.keys
    assert any(str(key) in str(told.value) for key in told.value.keys)
    return sorted(told.value.keys)


def test_damaged_rows_are_found_and_no_others(damaged: Damaged) -> None:
    for key in damaged.keys.tolist():
        assert refused(partial(damaged.var.lookup, [key], train=True)) == [key]
    for first in range(0, damaged.sound.size, 500):  # the others are as they were
        some = damaged.sound[first : first + 500]
        np.testing.assert_array_equal(
            damaged.var.lookup(some, train=True), damaged.before["values"][some]
        )


def test_look_ups_serve_rows_whose_slots_alone_are_damaged(tmp_path: Path) -> None:
    damaged_table = Damaged(tmp_path, flips=0)
    with damaged_table.var as var:
        keys = np.array(damaged_table.flip(3, beyond=4 * DIM))
        np.testing.assert_array_equal(var.damaged_keys(), keys)
        for train in (False, True, False):
            np.testing.assert_array_equal(
                var.lookup(keys, train=train), damaged_table.before["values"][keys]
            )
            var.drain()
        gradients = np.ones((keys.size, DIM), np.float32)
        assert refused(lambda: var.apply_gradients(keys, gradients)) == keys.tolist()


def test_a_variable_without_damage_has_no_damaged_keys(tmp_path: Path) -> None:
    whole = Damaged(tmp_path, flips=0)
    with whole.var:
        assert whole.keys.size == 0
        assert whole.var.drop_damaged().size == 0
        assert es.save(tmp_path / "save", [whole.var], 1, on_damage="skip").skipped == {}
        assert whole.var.total_count() == (COUNT, DIM)


def test_an_export_and_a_save_name_the_damaged_rows_that_stop_them(
    damaged: Damaged, tmp_path: Path
) -> None:
    path = tmp_path / "save"
    assert set(refused(damaged.var.export)) <= set(damaged.keys.tolist())
    assert set(refused(lambda: es.save(path, [damaged.var], 1))) <= set(damaged.keys.tolist())
    assert not list(path.glob("save-*"))


def assert_rows(got: dict[str, NDArray[Any]], before: dict[str, NDArray[Any]], keys: Any) -> None:
    np.testing.assert_array_equal(got["keys"], keys)
    for column, values in before.items():
        np.testing.assert_array_equal(got[column], values[keys], err_msg=column)


def test_an_export_can_leave_damaged_rows_out(damaged: Damaged) -> None:
    assert_rows(damaged.var.export(on_damage="skip"), damaged.before, damaged.sound)


def test_a_save_can_leave_damaged_rows_out_and_says_which(damaged: Damaged, tmp_path: Path) -> None:
    path = tmp_path / "save"
    report = es.save(path, [damaged.var], 1, on_damage="skip")
    assert list(report.skipped) == ["var"]
    np.testing.assert_array_equal(report.skipped["var"], damaged.keys)
    assert damaged.var.total_count()[0] == COUNT  # nothing was removed

    (tmp_path / "other").mkdir()
    restored = Damaged(tmp_path / "other", flips=0)
    with restored.var:
        es.restore(path, [restored.var])
        assert_rows(restored.var.export(), damaged.before, damaged.sound)


def test_dropped_rows_stop_nothing_any_more_and_start_anew(
    damaged: Damaged, tmp_path: Path
) -> None:
    es.save(tmp_path / "save", [damaged.var], 1, on_damage="skip")
    np.testing.assert_array_equal(damaged.var.drop_damaged(), damaged.keys)
    assert damaged.var.damaged_keys().size == 0
    assert damaged.var.total_count()[0] == damaged.sound.size
    assert (damaged.var.lookup_tier(damaged.keys) == -1).all()
    assert_rows(damaged.var.export(), damaged.before, damaged.sound)

    assert es.save_incremental(tmp_path / "more", [damaged.var], 2).skipped == {}
    assert es.save(tmp_path / "save", [damaged.var], 2).skipped == {}
    damaged.var.apply_gradients(damaged.keys, ONES[: damaged.keys.size])
    assert (damaged.var.get_frequency(damaged.keys) == 1).all()
    np.testing.assert_array_equal(  # one step from the initial rows, as the first time
        damaged.var.lookup(damaged.keys), damaged.before["values"][damaged.keys]
    )


@pytest.mark.parametrize("partition_num", [1, 2])
def test_rows_that_a_restore_brings_back_meanwhile_are_not_dropped(
    tmp_path: Path, partition_num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows").mkdir()
    damaged = Damaged(tmp_path / "rows", partition_num, flips=0)
    with damaged.var as var:
        es.save(tmp_path / "save", [var], 1)
        assert len(damaged.flip(3)) == 3
        shard = var._shards[0]  # the shard whose rows `flip` damages
        find = shard.find_damaged
        lock = ReportingLock(var.internals.checkpointing)
        monkeypatch.setattr(var.internals, "checkpointing", lock)
        restores: list[Future[int]] = []

        def find_and_restore() -> NDArray[np.int64]:
            found = find()
            restores.append(thread.submit(es.restore, tmp_path / "save", [var]))
            lock.wait_for(restores[0])
            return found

        monkeypatch.setattr(shard, "find_damaged", find_and_restore)
        with ThreadPoolExecutor(1) as thread:
            var.drop_damaged()
            restores[0].result(60)
        assert_rows(var.export(), damaged.before, IDS)


def test_an_incremental_save_lists_rows_that_were_dropped(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    damaged = Damaged(tmp_path / "rows", flips=0)
    with damaged.var as var:
        es.save(tmp_path / "save", [var], 1)
        flipped = damaged.flip(3)
        dropped = var.drop_damaged()
        assert dropped.tolist() == flipped
        es.save_incremental(tmp_path / "more", [var], 2)
        es.restore(tmp_path / "save", [var], [tmp_path / "more"])
        assert_rows(var.export(), damaged.before, np.setdiff1d(IDS, dropped))


def test_damaged_rows_stop_no_batch_that_does_not_need_them(damaged: Damaged) -> None:
    ids = damaged.sound[-200:]
    damaged.var.apply_gradients(ids, ONES[: ids.size])
    assert (damaged.var.get_frequency(ids) == 2).all()
    refused(lambda: damaged.var.apply_gradients(damaged.keys, ONES[: damaged.keys.size]))
    assert set(refused(damaged.var.export)) <= set(damaged.keys.tolist())


@pytest.mark.parametrize("on_damage", ["ignore", None, 1, ""])
def test_on_damage_must_be_one_of_two_words(tmp_path: Path, on_damage: Any) -> None:
    with es.get_embedding_variable("var", 3) as var:
        with pytest.raises(InvalidArgumentError, match="on_damage must be one of raise, skip"):
            var.export(on_damage=on_damage)
        with pytest.raises(InvalidArgumentError, match="on_damage"):
            es.save(tmp_path / "save", [var], 1, on_damage=on_damage)
        assert not (tmp_path / "save").exists()
