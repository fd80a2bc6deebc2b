"""Tables of a hundred rows, of which a model may have a thousand: they take what they hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path

import numpy as np

import embstore as es

TABLES, ROWS, DIM = 40, 100, 16


def anonymous_bytes():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return int(line.split()[1]) * 1024


def table(name):
    storage_type = es.StorageType[sys.argv[1]]
    is_only_dram = storage_type == es.StorageType.DRAM
    storage = es.StorageOption(
        storage_type=storage_type,
        storage_path=None if is_only_dram else sys.argv[2],
        storage_size=[1 << 28] if is_only_dram else [1 << 28, 1 << 22],
    )
    made = es.get_embedding_variable(
        name,
        DIM,
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(
            storage_option=storage,
            init_option=es.InitializerOption(es.initializers.Zeros(), default_value_dim=1),
        ),
    )
    ids = np.arange(ROWS)
    made.lookup(ids)
    made.apply_gradients(ids, np.zeros((ROWS, DIM), np.float32))
    return made


first = table("first")  # with what the process has for all tables
before = anonymous_bytes()
others = [table(f"table_{i}") for i in range(TABLES)]
print((anonymous_bytes() - before) // TABLES)
"""


@pytest.mark.parametrize("storage_type", ["DRAM", "DRAM_PMEM", "DRAM_SSDHASH"])
def test_a_table_of_a_hundred_rows_takes_no_huge_page(storage_type: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, storage_type, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 256 << 10  # its rows are 13 KB
