"""The files of the LEVELDB tier, read by another LevelDB reader as engine/FORMAT.md describes."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from engine_storage import files_without_locks, variable_with_options
from numpy.typing import NDArray
from plain_partition import partition_of

import embstore as es

plyvel = pytest.importorskip("plyvel")

DIM, SLOTS = 5, 1
BLOCK_FLOATS = 8  # five values, padded to a multiple of 16 bytes


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def ends_with_its_checksum(record: bytes) -> bool:
    return record[-4:] == struct.pack("<I", crc32c(record[:-4]))


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_another_reader_finds_every_row_of_the_tier(
    tmp_path: Path, seed: int, partitions: int
) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(-(2**63), 2**63, size=60, dtype=np.int64)
    storage = es.StorageOption(
        es.StorageType.DRAM_LEVELDB, storage_path=tmp_path / "rows", storage_size=[640]
    )
    with variable_with_options(
        "var",
        DIM,
        storage,
        initializer=es.initializers.RandomNormal(),
        optimizer=es.optimizers.Adagrad(0.1),
        partition_num=partitions,
    ) as variable:
        for global_step in range(20):  # rows go down, come back and go down again
            ids = random.choice(keys, 25)
            grads = random.standard_normal((25, DIM)).astype(np.float32)
            variable.apply_gradients(ids, grads, global_step)
        variable.drain()
        lower = variable.export()
        in_tier = variable.lookup_tier(lower["keys"]) == 1
        places = {int(key): i for i, key in enumerate(lower["keys"]) if in_tier[i]}
        (files,) = files_without_locks(tmp_path / "rows")
        shutil.copytree(files, tmp_path / "copy")  # LevelDB lets in one process at a time

    assert places
    database = plyvel.DB(str(tmp_path / "copy"))
    records: dict[int, tuple[int, int, int, NDArray[np.float32]]] = {}
    for record_key, record in database:
        assert ends_with_its_checksum(record)
        if record_key == b"format":
            assert record[:8] == b"EMBSTLDB"
            assert struct.unpack("<4I", record[8:24]) == (2, DIM, SLOTS, 0)
            continue
        prefix, table, unsigned, slot = struct.unpack(">cIQI", record_key)
        sequence, key, frequency, version, _, _, _ = struct.unpack_from("<QqQqQQQ", record)
        assert prefix == b"r"
        assert key == unsigned - (1 << 63)
        assert table == partition_of(key, partitions)
        assert slot == sequence % ((1 << 30) - 1)
        floats = np.frombuffer(record[56:-4], np.float32).reshape(1 + SLOTS, BLOCK_FLOATS)
        if key not in records or sequence > records[key][0]:
            records[key] = (sequence, frequency, version, floats[:, :DIM])
    database.close()

    for key, i in places.items():
        _, frequency, version, floats = records[key]
        assert frequency == lower["freqs"][i]
        assert version == lower["versions"][i]
        assert (floats[0] == lower["values"][i]).all()
        assert (floats[1] == lower["accumulator"][i]).all()


def test_a_users_files_are_not_written_over(tmp_path: Path) -> None:
    storage = es.StorageOption(es.StorageType.LEVELDB, storage_path=tmp_path, storage_size=[64])
    directory = tmp_path / "var.leveldb"
    directory.mkdir()
    (directory / "notes.txt").write_text("keep me")
    with pytest.raises(es.errors.StorageError, match=r"var\.leveldb: holds notes\.txt"):
        variable_with_options("var", DIM, storage)
    assert (directory / "notes.txt").read_text() == "keep me"
