"""A restored table takes as much memory as a trained one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from engine_storage import IN_MEMORY, variable_with_options
from programs import anonymous_bytes, run_program

import embstore as es

ROWS = 2_000_000
MIB = 1 << 20


def variable() -> es.EmbeddingVariable:
    return variable_with_options(
        "var",
        4,
        es.StorageOption(es.StorageType.DRAM, None, [ROWS * 32]),
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(0.1),
    )


def train(path: Path) -> None:
    before = anonymous_bytes()
    var = variable()
    for ids in np.array_split(np.arange(ROWS), 40):
        var.apply_gradients(ids, np.ones((ids.size, 4), np.float32))
    # A shard of the index that is nearly full begins a larger array at the next batch.
    var.apply_gradients(np.arange(1000), np.ones((1000, 4), np.float32))
    print(anonymous_bytes() - before, var.stats()["index_bytes"])
    es.save(path, [var], 1)
    var.close()


def restore(path: Path) -> None:
    before = anonymous_bytes()
    var = variable()
    es.restore(path, [var])
    assert var.total_count()[0] == ROWS
    print(anonymous_bytes() - before, var.stats()["index_bytes"])
    var.close()


@pytest.mark.timeout(200)
def test_a_restore_leaves_nothing_behind_but_the_table() -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        path = Path(directory) / "save"
        taken = {}
        for name in ("train", "restore"):
            program = f"import sys, test_restored_memory as t\nt.{name}(t.Path(sys.argv[1]))"
            ended = run_program(program, path)
            assert ended.returncode == 0, ended.stderr
            taken[name] = [int(number) for number in ended.stdout.split()]
    (trained, trained_index), (restored, restored_index) = taken["train"], taken["restore"]
    assert restored_index <= trained_index * 1.01
    assert restored < trained + 16 * MIB, (
        f"{(restored - trained) / MIB:.0f} MiB more than a table that was trained, whose index has "
        f"{trained_index / MIB:.0f} MiB"
    )
