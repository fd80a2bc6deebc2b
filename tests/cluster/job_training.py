"""The training that workers of a job do in tests, and the result that it must have."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sharded import combine_workers_parts, remote_shards

import embstore as es

DIM = 4
STEPS = 60
EVERY = 7  # number of steps between checkpoints
BATCH = 40

Export = dict[str, NDArray[Any]]


def durable(folder: str | Path) -> es.StorageOption:
    """Returns storage with durable pools in the folder, and DRAM for a few of the rows."""
    return es.StorageOption(
        es.StorageType.DRAM_PMEM, folder, [20 * 48, 4 << 20], durability="checkpoint"
    )


def variable(
    *, storage_option: es.StorageOption | None = None, **where: Any
) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "items",
        DIM,
        initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
        optimizer=es.optimizers.Adam(0.05),
        ev_option=es.EmbeddingVariableOption(
            filter_option=es.CounterFilter(2), storage_option=storage_option or es.StorageOption()
        ),
        **where,
    )


def batch(rank: int, step: int) -> NDArray[np.int64]:
    random = np.random.default_rng([rank, step])
    return np.minimum(random.zipf(1.3, BATCH), 90).astype(np.int64) * 7919 - 40_000


def gradients(rows: NDArray[np.float32], dense: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns gradients that depend on everything that was trained before."""
    result: NDArray[np.float32] = np.tanh(rows + dense)
    return result


def train(
    worker: es.cluster.Worker,
    folder: Path,
    shards: int,
    pause_s: float = 0.0,
    steps: int = STEPS,
    storage_option: es.StorageOption | None = None,
) -> Export | None:
    """Trains, and returns all rows in worker 0. folder: gets a file named by each process's id."""
    (folder / f"worker-{os.getpid()}").touch()
    with variable(shards=shards, storage_option=storage_option) as items:
        for shard in remote_shards(items):
            (folder / f"shard-{shard.process_id}").touch()
        dense = np.zeros(DIM, np.float32)
        found = worker.restore([items])
        if found is not None:
            dense = np.load(found.path / "dense.npy")
        for step in range(found.step if found is not None else 0, steps):
            ids = batch(worker.rank, step)
            rows = items.lookup(ids, train=True)
            items.apply_gradients(ids, gradients(rows, dense), global_step=step)
            dense = trained_dense(dense, step)
            time.sleep(pause_s)
            if (step + 1) % EVERY == 0:
                with worker.checkpoint(step + 1, [items]) as place:
                    if place is not None:
                        np.save(place / "dense.npy", dense)
        worker.meet()  # all have trained
        return items.export() if worker.rank == 0 else None


def trained_dense(dense: NDArray[np.float32], step: int) -> NDArray[np.float32]:
    """Returns the next dense weights, which all workers compute alike, as after an all-reduce."""
    result: NDArray[np.float32] = np.cos(dense + np.float32(step))
    return result


def trained_here(workers: int, steps: int = STEPS) -> Export:
    """Returns the rows that one process gets from all workers' parts, without any failure."""
    with variable() as items:
        dense = np.zeros(DIM, np.float32)
        for step in range(steps):
            everyones = [batch(rank, step) for rank in range(workers)]
            grads = [gradients(items.lookup(ids, train=True), dense) for ids in everyones]
            parts = combine_workers_parts(zip(everyones, grads, strict=True), workers)
            items.apply_gradients(*parts, global_step=step)
            dense = trained_dense(dense, step)
        return items.export()
