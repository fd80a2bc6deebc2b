"""A Keras model that the workers of a job train, and the result that it must have."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from sharded import combine_workers_parts
from torch import distributed

import embstore as es
from embstore.keras.optimizers import rule_from_keras

DIM, LENGTH, BATCH = 4, 3, 16
STEPS, EVERY = 12, 4  # all steps, and those of one call of fit
DIES_BEFORE_STEP = 8

Export = dict[str, NDArray[Any]]


def batch(rank: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    random = np.random.default_rng([rank, step])
    ids = np.minimum(random.zipf(1.3, (BATCH, LENGTH)), 90).astype(np.int64) * 7919 - 40_000
    return ids, (ids.sum(axis=1, keepdims=True) % 2).astype(np.float32)


class Part(keras.utils.PyDataset):  # type: ignore[misc]
    """A worker's batches of one call of fit."""

    def __init__(self, rank: int, step: int) -> None:
        super().__init__()
        self._rank, self._step = rank, step

    def __len__(self) -> int:
        return EVERY

    def __getitem__(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return batch(self._rank, self._step + number)


def initializer() -> es.initializers.Initializer:
    return es.initializers.RandomUniform(-1.0, 1.0, seed=3)


def head() -> Any:
    """Returns the dense part: from rows, float32 (batch, LENGTH, DIM), to labels."""
    keras.utils.set_random_seed(5)
    rows = keras.Input((LENGTH, DIM))
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Flatten()(rows))
    return keras.Model(rows, keras.layers.Dense(1, activation="sigmoid")(hidden))


def optimizer() -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
    return keras.optimizers.Adagrad(schedule)


def train(worker: es.cluster.Worker, folder: Path) -> tuple[Export | None, list[Any], list[float]]:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-{worker.generation}",
        rank=worker.rank,
        world_size=worker.workers,
    )
    ids = keras.Input((LENGTH,), dtype="int64")
    table = es.keras.Embedding(None, DIM, initializer(), name="table", shards=2)
    model = keras.Model(ids, head()(table(ids)))
    model.predict(batch(0, 0)[0], verbose=0)  # makes the table before its optimizer is known
    model.compile(es.keras.averaged(optimizer()), "binary_crossentropy")
    model.optimizer.build(model.trainable_variables)
    (rows,) = es.keras.variables(model)
    found = worker.restore([rows])
    done = 0 if found is None else found.step
    if found is not None:
        with es.keras.rows_kept_apart():
            model.load_weights(found.path / "dense.weights.h5")
    losses: list[float] = []
    while done < STEPS:
        if found is None and worker.rank == 1 and done == DIES_BEFORE_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        part: Any = Part(worker.rank, done)
        if worker.rank == 0:  # prefetches in one worker only
            part = es.keras.prefetching(part, model, shuffle=False)
        fitted = model.fit(part, shuffle=False, validation_data=batch(2, 0), verbose=0)
        losses += fitted.history["val_loss"]
        done += EVERY
        with worker.checkpoint(done, [rows]) as place:
            if place is not None:
                with es.keras.rows_kept_apart():
                    model.save_weights(place / "dense.weights.h5")
    worker.meet()
    export = rows.export() if worker.rank == 0 else None
    worker.meet()
    rows.close()
    distributed.destroy_process_group()
    return export, dense_weights(model.layers[-1]), losses


def dense_weights(model: Any) -> list[NDArray[np.float32]]:
    return [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]


def trained_here(workers: int) -> tuple[Export, list[NDArray[np.float32]]]:
    """Returns the rows and weights that one process gets from all parts, without failures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dense = head()
    by = optimizer()
    dense.compile(by, "binary_crossentropy")
    weights = dense.trainable_variables
    with es.get_embedding_variable(
        "table", DIM, initializer=initializer(), optimizer=rule_from_keras(optimizer())
    ) as table:
        for step in range(STEPS):
            parts = []
            for rank in range(workers):
                ids, labels = batch(rank, step)
                rows = torch.from_numpy(table.lookup(ids, train=True)).requires_grad_()
                predicted = dense(rows, training=True)
                dense.compute_loss(rows, torch.from_numpy(labels), predicted).backward()
                assert rows.grad is not None
                parts.append((ids, rows.grad.numpy()))
            table.learning_rate = float(by.learning_rate)
            table.apply_gradients(*combine_workers_parts(parts, workers))
            with torch.no_grad():
                by.apply([weight.value.grad / workers for weight in weights], weights)
            dense.zero_grad()
        torch.set_num_threads(threads)
        return table.export(), dense_weights(dense)
