"""One of two workers that train the dense layers of a model together: PORT NUMBER FILE."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

from pmemlab.workloads.criteo_deepctr.averaging import average_dense_gradients, joined
from pmemlab.workloads.criteo_deepctr.epochs import Worker
from pmemlab.workloads.criteo_deepctr.interactions import CompressedInteraction

STEPS, BATCH = 5, 8


def dense_model() -> Any:
    keras.utils.set_random_seed(3)
    rows = keras.Input((6, 4))
    maps = CompressedInteraction((5, 3))(rows)
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Flatten()(rows))
    logits = keras.layers.Dense(1)(keras.layers.Concatenate()([maps, hidden]))
    model = keras.Model(rows, logits)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def batch(number: int) -> tuple[Any, Any]:
    random = np.random.default_rng(number)
    rows = random.normal(size=(BATCH, 6, 4)).astype(np.float32)
    return rows, rows.sum(axis=(1, 2))[:, None]


def main(port: str, number: str, path: str) -> None:
    worker = Worker(int(number), 2)
    model = dense_model()
    with joined(f"127.0.0.1:{port}", worker):
        average_dense_gradients(model.optimizer)
        for step in range(STEPS):
            model.train_on_batch(*batch(step * worker.count + worker.number))
    np.savez(Path(path), *model.get_weights())


if __name__ == "__main__":
    main(*sys.argv[1:])
