"""Files of versions that placed key k in partition k modulo n: saves are restored, and rows that
stayed in their tiers are refused by name. Also sketches of versions that divided shards by a hash.

Such a version wrote data/placed_by_modulo.tar.xz (data/make_placed_by_modulo.py): `full`, and
`increment` after it, of 3 partitions with keys that an eviction removed; `counter` and `sketch`
with keys that wait at a filter; `kept-N`, and `pool-N` with `persisted-N`, of N partitions, as
their processes left them; and wanted.json, the exported rows. A version of the second kind wrote
data/sketch_of_other_shards.tar.xz (data/make_sketch_of_other_shards.py): `sketch-3` and
sketch-3.json.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import files_of, train
from engine_storage import skip_without_library
from exports import Export, assert_same

import embstore as es
from embstore import _core
from embstore.errors import CheckpointError, StorageError

DATA = Path(__file__).with_name("data")
ARCHIVES = [DATA / "placed_by_modulo.tar.xz", DATA / "sketch_of_other_shards.tar.xz"]
# The keys of the archives' variables.
KEYS = np.array([*range(-9, 24, 3), *range(100, 124, 4), -(2**63), 2**63 - 1])
COUNTER, SKETCH = es.CounterFilter(3), es.CBFFilter(3, 64, 0.01, np.uint8)
WHAT_TO_DO = (
    "put key k into partition k modulo .*; with that version es.save.* and es.restore.* save here"
)


@pytest.fixture
def older_files(place: Path) -> Path:
    """Unpacks the archives into a folder in memory."""
    for path in ARCHIVES:
        with tarfile.open(path) as archive:
            for entry in archive:
                content = archive.extractfile(entry)
                assert content is not None
                (place / entry.name).parent.mkdir(parents=True, exist_ok=True)
                (place / entry.name).write_bytes(content.read())
    return place


def expected_rows(older_files: Path, name: str) -> tuple[Export, list[int]]:
    """Returns the rows, and the frequencies of KEYS, waiting or not."""
    own = older_files / f"{name}.json"
    found = json.loads((own if own.exists() else older_files / "wanted.json").read_text())[name]
    frequencies = found.pop("frequencies", [])
    floats = ("values", "accumulator")
    columns = {
        column: np.array(values, np.float32 if column in floats else np.int64)
        for column, values in found.items()
    }
    return columns, frequencies


def variable(
    partition_num: int, storage: es.StorageOption | None = None, **options: Any
) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "var",
        2,
        initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(
            storage_option=storage or es.StorageOption(), **options
        ),
        partition_num=partition_num,
        restores=True,
    )


def kept_storage(older_files: Path, partitions: int) -> es.StorageOption:
    return es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        storage_path=older_files / f"kept-{partitions}",
        storage_size=[8 * 32],
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )


def pool_storage(
    folder: Path, storage_type: es.StorageType = es.StorageType.DRAM_PMEM
) -> es.StorageOption:
    skip_without_library(storage_type)
    return es.StorageOption(
        storage_type,
        storage_path=str(folder),
        storage_size=[8 * 32, 5000 * 256],
        durability="checkpoint",
    )


# --- Saves


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5])
def test_a_save_is_restored_onto_any_number_of_partitions(
    older_files: Path, partitions: int
) -> None:
    with variable(partitions) as var:
        assert es.restore(older_files / "full", [var]) == 1
        assert_same(var.export(), expected_rows(older_files, "full")[0])
        assert es.restore(older_files / "full", [var], [older_files / "increment"]) == 12
        assert_same(var.export(), expected_rows(older_files, "increment")[0])


def test_a_variable_keeps_its_initial_rows_if_a_save_has_none(older_files: Path) -> None:
    untrained = np.arange(10_000, 15_000)
    with variable(1) as var:
        own = var.lookup(untrained)
        es.restore(older_files / "full", [var])
        np.testing.assert_array_equal(var.lookup(untrained), own)


@pytest.mark.parametrize("partitions", [1, 3, 4])
def test_an_increment_that_places_keys_by_their_hash_may_follow(
    older_files: Path, partitions: int
) -> None:
    with variable(partitions, evict_option=es.GlobalStepEvict(10)) as var:
        es.restore(older_files / "full", [var])
        removed = np.array([100, -9])
        rows = np.ones((KEYS.size, 2), np.float32)
        var.apply_gradients(np.setdiff1d(KEYS, removed), rows[2:], global_step=12)
        var.apply_gradients([5, 6], rows[:2], global_step=13)
        es.save_incremental(older_files / "more", [var], 13)  # removes rows that are 12 steps old
        after = var.export()
        assert not np.isin(removed, after["keys"]).any()
        var.apply_gradients(KEYS, rows, global_step=14)
        es.save_incremental(older_files / "most", [var], 14)
        latest = var.export()
    for number in range(1, 6):
        with variable(number) as other:
            es.restore(older_files / "full", [other], [older_files / "more"])
            assert_same(other.export(), after)
            es.restore(older_files / "full", [other], [older_files / "more", older_files / "most"])
            assert_same(other.export(), latest)


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
def test_keys_that_wait_go_on_waiting(older_files: Path, partitions: int) -> None:
    rows, frequencies = expected_rows(older_files, "counter")
    with variable(partitions, filter_option=COUNTER) as var:
        es.restore(older_files / "counter", [var])
        assert_same(var.export(), rows)
        assert var.get_frequency(KEYS).tolist() == frequencies
        absent = frequencies.count(0)
        assert var.stats()["waiting_keys"] == KEYS.size - absent - rows["keys"].size


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("save", ["sketch", "sketch-3"])
def test_a_sketch_forgets_no_key(older_files: Path, save: str, partitions: int) -> None:
    rows, frequencies = expected_rows(older_files, save)
    with variable(partitions, filter_option=SKETCH) as var:
        es.restore(older_files / save, [var])
        assert_same(var.export(), rows)
        assert (var.get_frequency(KEYS) >= frequencies).all()
        waiting = KEYS.size - frequencies.count(0) - rows["keys"].size
        assert waiting <= var.stats()["waiting_keys"] <= waiting * partitions


def test_a_file_that_was_placed_in_another_way_than_it_says_is_refused(older_files: Path) -> None:
    (file,) = [file for file in files_of(older_files / "full") if file.name == "var-0.1.rows"]
    content = bytearray(file.read_bytes())
    assert not _core.verify_rows(str(file), 3)["is_placed_by_hash"]
    content[8] = 2  # the version of files that are placed by hash
    content[60:64] = _core.crc32c(bytes(content[:60])).to_bytes(4, "little")
    file.write_bytes(content)
    told = rf"{re.escape(str(file))}: has key -?\d+, which isn't of its partition, 1 of 3"
    with pytest.raises(CheckpointError, match=told):
        _core.verify_rows(str(file), 3)


def test_a_save_of_this_version_says_how_its_keys_are_placed(tmp_path: Path) -> None:
    with variable(3) as var:
        train(var, 1)
        es.save(tmp_path, [var], 1)
    files = [file for file in files_of(tmp_path) if file.suffix == ".rows"]
    assert len(files) == 3
    for file in files:
        assert file.read_bytes()[8:12] == b"\4\0\0\0"
        assert _core.verify_rows(str(file), 3)["is_placed_by_hash"]


# --- Rows that stay in their tiers


WAY_OUT = r"is of an earlier version .*es\.save\(\) .* remove its files.* es\.restore\(\)"


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("kind", ["kept", "pool"])
def test_rows_of_an_earlier_version_are_refused_by_name_and_stay(
    older_files: Path, kind: str, partitions: int
) -> None:
    folder = older_files / f"{kind}-{partitions}"
    storage = kept_storage(older_files, partitions) if kind == "kept" else pool_storage(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(StorageError, match=WAY_OUT) as told:
            variable(partitions, storage)
        assert str(told.value).startswith(f"{folder}/var")
    assert {path: path.read_bytes() for path in before} == before


def test_kept_files_without_their_note_are_refused_as_well(older_files: Path) -> None:
    for note in older_files.rglob("sequence.ssdhash"):
        note.unlink()  # the files of rows say it as well
    with pytest.raises(StorageError, match=rf"var\.ssdhash/rows-.*{WAY_OUT}"):
        variable(1, kept_storage(older_files, 1))


def test_kept_files_of_this_version_are_taken_over_on_several_partitions(tmp_path: Path) -> None:
    (tmp_path / "kept-3").mkdir()
    with variable(3, kept_storage(tmp_path, 3)) as var:
        train(var, 1)
        before = var.export()
    with variable(3, kept_storage(tmp_path, 3)) as var:
        assert_same(var.export(), before)


def test_a_checkpoint_of_several_partitions_is_refused_by_another_pool(older_files: Path) -> None:
    (older_files / "new").mkdir()
    with variable(2, pool_storage(older_files / "new")) as var:
        with pytest.raises(CheckpointError, match=WHAT_TO_DO):
            es.restore_persisted([var], older_files / "persisted-2")
        train(var, 1)


def test_a_pool_of_this_version_is_restored_on_several_partitions(place: Path) -> None:
    storage = pool_storage(place / "pool", es.StorageType.DRAM_PMEM_SSDHASH)
    (place / "pool").mkdir()
    with variable(3, storage) as var:
        train(var, 1)
        before = var.export()
        es.persist([var], place / "persisted")
        train(var, 2)
    with variable(3, storage) as var:
        es.restore_persisted([var], place / "persisted")
        assert_same(var.export(), before)
