"""A storage_path means the same directory for as long as its variable is open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from engine_storage import MIB, TIERED_STACKS, MakeVariable, Stack, skip_without_library

import embstore as es

IDS = np.arange(2000)
GRADS = np.ones((IDS.size, 3), np.float32)

IN_FILES = (*TIERED_STACKS, Stack(es.StorageType.PMEM_LIBPMEM))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes tmp_path the working directory. Returns another directory."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "elsewhere"
    made.mkdir()
    return made


@pytest.mark.parametrize("partition_num", [1, 2])
@pytest.mark.parametrize("stack", IN_FILES, ids=lambda stack: stack.name)
def test_a_relative_storage_path_stays_where_it_is_when_the_process_goes_elsewhere(
    make_variable: MakeVariable,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Path,
    stack: Stack,
    partition_num: int,
) -> None:
    storage = stack.option(Path("rows"), [*[200 * 32] * (stack.tiers - 1), 4 * MIB])
    if all(tier.path is None for tier in storage.tiers()):
        pytest.skip(f"{stack.name} has no files")
    var = make_variable(storage=storage, partition_num=partition_num)
    rows = elsewhere.parent / "rows"
    var.apply_gradients(IDS, GRADS)
    monkeypatch.chdir(elsewhere)
    for _ in range(3):
        var.apply_gradients(IDS, GRADS)
    var.drain()
    assert (var.get_frequency(IDS) == 4).all()
    paths = {tier["path"] for tier in var.stats()["tiers"] if tier["path"] is not None}
    assert paths
    assert all(Path(path).parent == rows for path in paths)
    var.close()
    assert list(rows.iterdir()) == []
    assert list(elsewhere.iterdir()) == []


def test_an_option_is_relative_to_where_each_of_its_variables_was_made(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, "rows")
    first = make_variable(name="var", storage=storage)
    monkeypatch.chdir(elsewhere)
    second = make_variable(name="var", storage=storage)
    for variable, around in ((first, elsewhere.parent), (second, elsewhere)):
        assert variable.stats()["tiers"][1]["path"] == str(around / "rows" / "var.ssdhash")
        assert variable.ev_option.storage_option.tiers()[1].path == str(around / "rows")


def test_a_directory_that_is_gone_is_an_error_if_the_path_is_relative_to_it(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    monkeypatch.chdir(elsewhere)
    elsewhere.rmdir()
    with pytest.raises(es.errors.StorageError, match=r"storage_path: rows .*no working directory"):
        make_variable(storage=es.StorageOption(es.StorageType.DRAM_SSDHASH, "rows"))


def test_pools_persist_to_a_relative_path_and_find_it_from_elsewhere(
    make_variable: MakeVariable, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    skip_without_library(es.StorageType.DRAM_PMEM)

    def storage(path: Path | str) -> es.StorageOption:
        return es.StorageOption(
            es.StorageType.DRAM_PMEM, [None, path], [MIB, 4 * MIB], durability="checkpoint"
        )

    var = make_variable(name="var", storage=storage("rows"))
    var.apply_gradients(IDS, GRADS)
    es.persist([var], "checkpoints", global_step=1)
    monkeypatch.chdir(elsewhere)
    var.apply_gradients(IDS, GRADS)
    es.persist([var], elsewhere.parent / "checkpoints", global_step=2)
    wanted = var.lookup(IDS)
    var.close()
    again = make_variable(name="var", storage=storage(elsewhere.parent / "rows"), restores=True)
    assert es.restore_persisted([again], "../checkpoints") == 2
    np.testing.assert_array_equal(again.lookup(IDS), wanted)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.timeout(20)  # an open that waits for a writer would wait for ever
@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (es.StorageType.DRAM_PMEM, "var.pool"),
        (es.StorageType.DRAM_SSDHASH, "var.ssdhash/rows-0000000001.ssdhash"),
        (es.StorageType.DRAM_LEVELDB, "var.leveldb/CURRENT"),
    ],
)
def test_a_fifo_in_the_place_of_a_file_is_refused_at_once(
    make_variable: MakeVariable, tmp_path: Path, stack: es.StorageType, name: str
) -> None:
    skip_without_library(stack)
    durability = "checkpoint" if stack is es.StorageType.DRAM_PMEM else None
    storage = es.StorageOption(stack, tmp_path, [MIB, 4 * MIB], durability=durability)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(es.errors.StorageError, match=f"{tmp_path}/var.*is a FIFO.*remove"):
        make_variable(name="var", storage=storage)
