"""Writes placed_by_modulo.tar.xz: files of versions that put key k into partition k modulo n.

    git worktree add /tmp/before 7e63559, and build its engine
    PYTHONPATH=/tmp/before/engine python tests/engine/data/make_placed_by_modulo.py

Later versions can't write such files, so nothing else makes the archive anew.
test_older_placement.py describes its contents, and the rows that they must restore (`wanted.json`).
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import embstore as es

ARCHIVE = Path(__file__).with_name("placed_by_modulo.tar.xz")
DIM = 2
POOL_BYTES = 5000 * 256
KEYS = np.array([*range(-9, 24, 3), *range(100, 124, 4), -(2**63), 2**63 - 1])  # most are strided


def variable(
    name: str = "var", partition_num: int = 3, storage: es.StorageOption | None = None, **more: Any
) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        name,
        DIM,
        initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=storage or es.StorageOption(), **more),
        partition_num=partition_num,
    )


def train(var: es.EmbeddingVariable, seed: int, global_step: int, share: float = 0.8) -> None:
    random = np.random.default_rng(seed)
    ids = random.permutation(KEYS)[: int(KEYS.size * share)]
    ids = np.concatenate([ids, ids[::2]])
    grads = random.standard_normal((ids.size, DIM)).astype(np.float32)
    var.apply_gradients(ids, grads, global_step=global_step)


def rows_of(var: es.EmbeddingVariable) -> dict[str, list[Any]]:
    return {column: values.tolist() for column, values in var.export().items()}


def waiting_of(var: es.EmbeddingVariable) -> list[int]:
    return [int(count) for count in var.get_frequency(KEYS)]


def write(root: Path) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    with variable(evict_option=es.GlobalStepEvict(10)) as var:
        train(var, 1, global_step=1)
        es.save(root / "full", [var], 1)
        wanted["full"] = rows_of(var)
        train(var, 2, global_step=12, share=0.5)
        es.save_incremental(root / "increment", [var], 12)  # with removed keys
        wanted["increment"] = rows_of(var)
    for name, option in (
        ("counter", es.CounterFilter(3)),
        ("sketch", es.CBFFilter(3, 64, 0.01, np.uint8)),
    ):
        with variable(filter_option=option) as var:
            train(var, 3, global_step=1)
            train(var, 4, global_step=2, share=0.5)
            es.save(root / name, [var], 2)
            wanted[name] = {**rows_of(var), "frequencies": waiting_of(var)}
    for partitions in (1, 2):
        (root / f"kept-{partitions}").mkdir()
        storage = es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            storage_path=root / f"kept-{partitions}",
            storage_size=[8 * 32],
            ssdhash_option=es.SSDHashOption(keep_files=True),
        )
        with variable(partition_num=partitions, storage=storage) as var:
            train(var, 5, global_step=3)
            wanted[f"kept-{partitions}"] = rows_of(var)
        (root / f"pool-{partitions}").mkdir()
        storage = es.StorageOption(
            es.StorageType.DRAM_PMEM,
            storage_path=str(root / f"pool-{partitions}"),
            storage_size=[8 * 32, POOL_BYTES],
            durability="checkpoint",
        )
        with variable(
            partition_num=partitions, storage=storage, filter_option=es.CounterFilter(2)
        ) as var:
            train(var, 6, global_step=4)
            wanted[f"pool-{partitions}"] = {**rows_of(var), "frequencies": waiting_of(var)}
            es.persist([var], root / f"persisted-{partitions}", global_step=4)
    return wanted


def pack(archive_file: Path, root: Path) -> None:
    with tarfile.open(archive_file, "w:xz") as archive:
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(root)))  # without owner and time
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="placed-by-modulo-", dir="/tmp") as directory:
        root = Path(directory)
        wanted = write(root)
        header = next((root / "full").glob("save-*/*.rows*")).read_bytes()[:12]
        if header[8:] != b"\1\0\0\0":
            sys.exit("this engine isn't of before: its row files have another version than 1")
        (root / "wanted.json").write_text(json.dumps(wanted))
        pack(ARCHIVE, root)


if __name__ == "__main__":
    main()
