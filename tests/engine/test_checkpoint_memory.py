"""A checkpoint needs no memory that grows with the table."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from engine_storage import skip_without_library, variable_with_options
from programs import run_function
from saves_in_little_memory import measured

import embstore as es


@pytest.mark.long
@pytest.mark.parametrize(
    "storage_type",
    [es.StorageType.DRAM_SSDHASH, es.StorageType.DRAM_LEVELDB],
    ids=lambda storage_type: storage_type.name,
)
def test_a_table_much_larger_than_its_first_tier_is_saved_and_restored_in_little_memory(
    tmp_path: Path, storage_type: es.StorageType
) -> None:
    skip_without_library(storage_type)
    script = Path(__file__).with_name("saves_in_little_memory.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), storage_type.name, "300000"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mib = json.loads(done.stdout)
    assert mib["saved_mib"] > 150
    assert mib["save_growth_mib"] < 16
    # One file's rows, as copies of the tiers, of NumPy and of safetensors, and the keys.
    assert mib["write_growth_mib"] < 5 * 5.2 + 2 * 2.4 + 8
    # A restore fills the table meanwhile: its index, its first tier, and in LevelDB up to two write
    # buffers of 16 MiB, for each of two partitions.
    buffers_mib = 64 if storage_type is es.StorageType.DRAM_LEVELDB else 16
    table_mib = mib["index_mib"] + mib["first_tier_mib"] + buffers_mib
    assert mib["restore_growth_mib"] < 16 + table_mib
    assert mib["read_growth_mib"] < 32 + table_mib


def a_save_of_many_partitions_takes_the_memory_of_a_few() -> None:
    dim, rows, partitions = 64, 750_000, 96
    storage = es.StorageOption(es.StorageType.DRAM, storage_size=[2 * rows // partitions * dim * 4])
    grads = np.ones((rows // 10, dim), np.float32)
    grown: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        variable_with_options(
            "var", dim, storage, optimizer=es.optimizers.SGD(0.1), partition_num=partitions
        ) as var,
    ):
        for first in range(0, rows, len(grads)):
            var.apply_gradients(np.arange(first, first + len(grads)), grads)
        with measured(grown, "save"):
            es.save(Path(directory) / "saved", [var], 1)
    assert grown["save_growth_mib"] < 32 * 4 + 24, grown


@pytest.mark.long
def test_many_partitions_are_saved_in_the_memory_of_a_few() -> None:
    run_function("test_checkpoint_memory", "a_save_of_many_partitions_takes_the_memory_of_a_few()")
