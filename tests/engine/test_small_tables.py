"""A model may have a thousand tables of a hundred rows, so none may take a huge page."""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreter import run_python

PROGRAM = """
import sys

import numpy as np

import embstore as es
from embstore.bench.memory_process import dram_bytes

TABLES, ROWS, DIM = 40, 100, 16


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
before = dram_bytes()
others = [table(f"table_{i}") for i in range(TABLES)]
print((dram_bytes() - before) // TABLES)
"""


@pytest.mark.parametrize("storage_type", ["DRAM", "DRAM_PMEM", "DRAM_SSDHASH"])
def test_a_table_of_a_hundred_rows_takes_no_huge_page(storage_type: str, tmp_path: Path) -> None:
    done = run_python(PROGRAM, storage_type, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256 << 10  # its rows are 13 KB
