"""The memory that a large batch needs goes back to the system when the batch is done."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_storage import variable_with_options
from programs import anonymous_bytes, run_function

import embstore as es

DIM = 64
IDS = 1_000_000
MIB = 1 << 20
# A partition keeps buffers of look-ups, and room in its index, until it is closed.
MOST_KEPT_BY_PARTITION = 80 * MIB
# Libraries, the eviction threads and the interpreter keep 4 to 27 MiB from run to run. (When each
# thread kept the buffers of its batches, that was 130 MiB and more a thread.)
MAX_KEPT = 64 * MIB


def variable(storage_type: es.StorageType, path: str, partition_num: int) -> es.EmbeddingVariable:
    several = storage_type is not es.StorageType.DRAM
    return variable_with_options(
        "var",
        DIM,
        es.StorageOption(
            storage_type, path if several else None, [16 * MIB if several else 512 * MIB]
        ),
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(0.1),
        partition_num=partition_num,
    )


def train_once(storage_type: int, partition_num: int, threads: int) -> None:
    """Trains and looks up one large batch, in which every id occurs twice, in threads that stay.

    The table has the batch's rows before, so it doesn't grow.
    """
    half = np.arange(IDS // 2)
    ids = np.concatenate([half, half])
    gradients = np.ones((ids.size, DIM), np.float32)
    all_run = threading.Barrier(threads)

    def train_and_read(var: es.EmbeddingVariable) -> None:
        all_run.wait()  # so that each runs in a thread of its own
        var.lookup(ids, train=True)
        var.apply_gradients(ids, gradients)
        var.lookup(ids)
        var.drain()

    with tempfile.TemporaryDirectory() as path, ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda _: all_run.wait(), range(threads)):
            pass
        before = anonymous_bytes()
        with variable(es.StorageType(storage_type), path, partition_num) as var:
            for some in np.array_split(half, 50):
                var.apply_gradients(some, gradients[: some.size])
            var.drain()
            trained = anonymous_bytes()
            for _ in pool.map(train_and_read, [var] * threads):
                pass
            kept_open = anonymous_bytes() - trained
        kept = anonymous_bytes() - before
    most_open = MAX_KEPT + partition_num * MOST_KEPT_BY_PARTITION
    assert kept_open <= most_open, f"{kept_open / MIB:.0f} MiB more than before the large batches"
    assert kept <= MAX_KEPT, f"{kept / MIB:.0f} MiB more than before the table"


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("storage_type", "partition_num", "threads"),
    [
        (es.StorageType.DRAM, 1, 3),
        pytest.param(es.StorageType.DRAM, 4, 1, marks=pytest.mark.long),
        pytest.param(es.StorageType.DRAM_SSDHASH, 1, 1, marks=pytest.mark.long),
        pytest.param(es.StorageType.DRAM_SSDHASH, 3, 2, marks=pytest.mark.long),
        pytest.param(es.StorageType.DRAM_LEVELDB, 1, 1, marks=pytest.mark.long),
    ],
)
def test_a_large_batch_leaves_little_memory_with_its_threads(
    storage_type: es.StorageType, partition_num: int, threads: int
) -> None:
    run_function(
        "test_batch_memory", f"train_once({int(storage_type)}, {partition_num}, {threads})"
    )
