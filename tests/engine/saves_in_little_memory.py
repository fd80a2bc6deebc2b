"""Saves a table many times larger than its first tier, writes its rows into files, then reads and
restores it. Prints how much the process's memory grew in each of the four.

    python saves_in_little_memory.py DIRECTORY STORAGE_TYPE ROWS
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import embstore as es

DIM = 64
FIRST_TIER = 4 << 20
ROWS_A_FILE = 10_000
MIB = 1 << 20


def variable(path: Path, storage_type: es.StorageType) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "var",
        DIM,
        initializer=es.initializers.Ones(),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(
            storage_option=es.StorageOption(storage_type, path, [FIRST_TIER])
        ),
        partition_num=2,
    )


def memory() -> int:
    """Returns the process's anonymous memory in bytes, without the files that it maps."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("RssAnon")


@contextmanager
def measured(result: dict[str, float], name: str) -> Iterator[None]:
    """Puts the block's growth of memory (MiB) and its seconds into `result`."""
    done = threading.Event()
    before = peak = memory()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    yield
    result[f"{name}_s"] = time.monotonic() - start
    done.set()
    watcher.join()
    result[f"{name}_growth_mib"] = (max(peak, memory()) - before) / MIB


def main(path: Path, storage_type: es.StorageType, rows: int) -> None:
    grads = np.ones((10_000, DIM), np.float32)
    result: dict[str, float] = {}
    with variable(path / "rows", storage_type) as var:
        for first in range(0, rows, len(grads)):
            var.apply_gradients(np.arange(first, first + len(grads)), grads)
        var.drain()
        with measured(result, "save"):
            es.save(path / "saved", [var], 1)
        with measured(result, "write"):
            es.write_rows(path / "written", var, file_format="safetensors", rows_a_file=ROWS_A_FILE)
    with variable(path / "read", storage_type) as var:
        with measured(result, "read"):
            assert es.read_rows(path / "written", var) == rows
        assert var.total_count() == (rows, DIM)
    with variable(path / "again", storage_type) as var:
        with measured(result, "restore"):
            es.restore(path / "saved", [var])
        assert var.total_count() == (rows, DIM)
        index_bytes = var.stats()["index_bytes"]
    result["index_mib"] = index_bytes / MIB
    result["first_tier_mib"] = 2 * FIRST_TIER / MIB
    result["saved_mib"] = sum(file.stat().st_size for file in (path / "saved").glob("*/*")) / MIB
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), es.StorageType[sys.argv[2]], int(sys.argv[3]))
