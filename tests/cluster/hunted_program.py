"""A program whose processes are killed: two workers that train rows and dense weights.

    python hunted_program.py FOLDER STORAGE

FOLDER gets a file for each process that takes part, the checkpoints, and at the end result.npz.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from job_training import DIM, Export, batch, gradients, variable
from numpy.typing import NDArray
from sharded import combine_workers_parts, remote_shards

import embstore as es
from embstore.cluster.ray.calls import wait_for

WORKERS = 2
SHARDS = 2
STEPS = 60
EVERY = 6  # number of steps between checkpoints
SILENCE_S = 3.0
PATIENCE_S = 6.0

_ROW_BYTES = 3 * 16  # weights and Adam's two slots
_PAUSE_S = 0.03  # in each step, and between the files of a checkpoint


def storage(name: str, path: Any) -> dict[str, Any]:
    """Returns options of the variable. If it has several tiers, the first holds only a few rows."""
    if name == "DRAM":
        return {}
    kind, _, is_durable = name.partition(" ")
    last = {"DRAM_PMEM": 16 << 20, "DRAM_SSDHASH": 1 << 20}[kind]
    return {
        "storage_option": es.StorageOption(
            es.StorageType[kind],
            [None, path],
            [16 * _ROW_BYTES, last],
            durability="checkpoint" if is_durable else None,
        )
    }


class Dense:
    """The dense weights, and the loss of each step, which depends on all workers' rows."""

    def __init__(self, weights: NDArray[np.float32], losses: Sequence[float]) -> None:
        self.weights = weights
        self.losses = list(losses)

    def train(self, rows: Sequence[NDArray[np.float32]]) -> None:
        """Makes one step. rows: those of each worker's batch, in the workers' order."""
        means = [each.mean(axis=0, dtype=np.float64) for each in rows]
        total = np.sum(means, axis=0)
        self.losses.append(float(np.square(total - self.weights).sum()))
        self.weights = np.cos(self.weights + total).astype(np.float32)


def train(worker: es.cluster.Worker, folder: Path, storage_name: str) -> Export | None:
    (folder / f"worker-{os.getpid()}").touch()
    (folder / f"actor-{wait_for(worker._ticket.actor.process_id.remote())}").touch()
    place = es.cluster.NODE_PMEM if storage_name.startswith("DRAM_PMEM") else folder / "ssd"
    with variable(shards=SHARDS, **storage(storage_name, place)) as items:
        for shard in remote_shards(items):
            (folder / f"shard-{shard.process_id}").touch()
        dense = Dense(np.zeros(DIM, np.float32), [])
        found = worker.restore([items])
        if found is not None:
            dense = Dense(np.load(found.path / "dense.npy"), np.load(found.path / "losses.npy"))
        for step in range(0 if found is None else found.step, STEPS):
            everyones = [batch(rank, step) for rank in range(WORKERS)]
            rows = [items.lookup(ids, train=True) for ids in everyones]
            time.sleep(_PAUSE_S)
            items.apply_gradients(
                everyones[worker.rank],
                gradients(rows[worker.rank], dense.weights),
                global_step=step,
            )
            dense.train(rows)
            if (step + 1) % EVERY == 0:
                with worker.checkpoint(step + 1, [items]) as files:
                    if files is not None:
                        np.save(files / "dense.npy", dense.weights)
                        time.sleep(_PAUSE_S)
                        np.save(files / "losses.npy", dense.losses)
        worker.meet()
        if worker.rank != 0:
            return None
        return {**items.export(), "dense": dense.weights, "losses": np.array(dense.losses)}


@functools.cache
def trained_here() -> Export:
    """Returns the rows that one process gets from all workers' parts, without any failure."""
    with variable() as items:
        dense = Dense(np.zeros(DIM, np.float32), [])
        for step in range(STEPS):
            everyones = [batch(rank, step) for rank in range(WORKERS)]
            rows = [items.lookup(ids, train=True) for ids in everyones]
            grads = [gradients(found, dense.weights) for found in rows]
            parts = combine_workers_parts(zip(everyones, grads, strict=True), WORKERS)
            items.apply_gradients(*parts, global_step=step)
            dense.train(rows)
        return {**items.export(), "dense": dense.weights, "losses": np.array(dense.losses)}


def main(folder: Path, storage_name: str) -> None:
    result, _ = es.cluster.run(
        train,
        folder,
        storage_name,
        workers=WORKERS,
        checkpoints=folder / "checkpoints",
        max_failures=20,  # a hunt leaves less time between failures than real use
        silence_s=SILENCE_S,
        patience_s=PATIENCE_S,
    )
    written = folder / "written.npz"
    np.savez(written, **result)
    written.rename(folder / "result.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
