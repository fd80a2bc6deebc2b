"""Many tables, and tables of many files, within the file descriptors that a process usually has."""

from __future__ import annotations

from pathlib import Path

from programs import run_program

MANY_TABLES = """
import os, resource, sys
import numpy as np
import embstore as es

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
option = es.EmbeddingVariableOption(
    storage_option=es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        sys.argv[1],
        [4096],
        ssdhash_option=es.SSDHashOption(file_bytes=64 << 10, buffer_bytes=128 << 10),
    )
)
ids = np.arange(30_000)
variables = [
    es.get_embedding_variable(
        f"table_{i}",
        4,
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(learning_rate=1.0),
        ev_option=option,
        partition_num=8,
    )
    for i in range(26)
]
for i, variable in enumerate(variables):
    rows = (ids[:, None] * 32 + i + np.zeros(4)).astype(np.float32)
    variable.apply_gradients(ids, -rows)
    variable.drain()
files = sum(len(names) for _, _, names in os.walk(sys.argv[1]))
assert files > 1024, files
for i, variable in enumerate(variables):
    assert np.array_equal(variable.lookup(ids), (ids[:, None] * 32 + i + np.zeros(4)))
    variable.close()
print(files)
"""


def test_26_variables_of_8_partitions_run_within_1024_descriptors(tmp_path: Path) -> None:
    ended = run_program(MANY_TABLES, tmp_path, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 1024
