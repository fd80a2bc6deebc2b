"""Many tables, and tables of many files, run within a process's usual file descriptors."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from engine_storage import skip_without_library
from programs import run_program

import embstore as es

BEGIN = textwrap.dedent(
    """
    import os, resource, sys
    import numpy as np
    import embstore as es

    path, kind, most = sys.argv[1], es.StorageType[sys.argv[2]], int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def variable(name, partitions, **options):
        # All tiers but the last are given a size: room for a few rows.
        storage = es.StorageOption(
            kind, storage_path=path, storage_size=[1024] * kind.name.count("_"), **options
        )
        return es.get_embedding_variable(
            name,
            embedding_dim=4,
            initializer=es.initializers.Zeros(),
            optimizer=es.optimizers.SGD(learning_rate=1.0),
            ev_option=es.EmbeddingVariableOption(storage_option=storage),
            partition_num=partitions,
        )
    """
)

# The tables of a model with 26 categorical columns on 8 partitions each.
TRAINS = BEGIN + textwrap.dedent(
    """
    ids = np.arange(4000)
    variables = [variable(f"column_{i}", 8) for i in range(26)]
    for i, column in enumerate(variables):
        for _ in range(2):
            column.apply_gradients(ids, np.full((ids.size, 4), -1.0 - i, np.float32))
    for column in variables:
        column.drain()
    for i, column in enumerate(variables):
        assert column.total_count() == (ids.size, 4)
        assert (column.lookup(ids) == 2.0 * (1 + i)).all()
        assert (column.lookup_tier(ids) > 0).sum() > ids.size / 2
    print(len(os.listdir("/proc/self/fd")))
    """
)

FILLS_MANY_FILES = BEGIN + textwrap.dedent(
    """
    ids = np.arange(30_000)
    small = es.SSDHashOption(file_bytes=64 << 10, buffer_bytes=128 << 10)
    variables = [variable(f"column_{i}", 8, ssdhash_option=small) for i in range(26)]
    rows = [np.repeat(ids[:, None] * 32 + i, 4, 1).astype(np.float32) for i in range(26)]
    for column, own in zip(variables, rows):
        column.apply_gradients(ids, -own)
        column.drain()
    files = sum(len(names) for _, _, names in os.walk(path))
    for column, own in zip(variables, rows):
        assert np.array_equal(column.lookup(ids), own)
    print(files)
    """
)

RUNS_OUT = BEGIN + textwrap.dedent(
    """
    variables = []
    try:
        while True:
            variables.append(variable(f"column_{len(variables)}", 1))
    except es.errors.StorageError as error:
        print(error)
    assert len(variables) >= 8
    variables.pop().close()
    variables.pop().close()
    variables.append(variable("column_again", 1))
    for column in variables:
        column.apply_gradients(np.arange(500), np.full((500, 4), -1.0, np.float32))
        assert (column.lookup(np.arange(500)) == 1.0).all()
    """
)


def output_of(program: str, path: Path, storage_type: es.StorageType, most: int) -> str:
    done = run_program(program, path, storage_type.name, str(most), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    "storage_type",
    [es.StorageType.DRAM_LEVELDB, es.StorageType.DRAM_PMEM_LEVELDB],
    ids=lambda storage_type: storage_type.name,
)
def test_26_variables_of_8_partitions_run_within_1024_descriptors(
    tmp_path: Path, storage_type: es.StorageType
) -> None:
    skip_without_library(storage_type)
    held = int(output_of(TRAINS, tmp_path, storage_type, 1024))
    # LevelDB may hold a fifth of the limit for the files of large tables.
    assert held < 1024 * 4 // 5
    assert not list(tmp_path.iterdir())


def test_26_variables_with_more_than_1024_files_run_within_1024_descriptors(tmp_path: Path) -> None:
    files = output_of(FILLS_MANY_FILES, tmp_path, es.StorageType.DRAM_SSDHASH, 1024)
    assert int(files) > 1024


def test_an_error_about_descriptors_names_the_limit_and_what_to_do(tmp_path: Path) -> None:
    skip_without_library(es.StorageType.DRAM_LEVELDB)
    message = output_of(RUNS_OUT, tmp_path, es.StorageType.DRAM_LEVELDB, 64)
    assert "Too many open files; this process may have 64 files open" in message
    assert "(ulimit -n)" in message
