"""One of two processes whose training steps must raise: averaging_replica.py RANK MEETING_FILE."""

from __future__ import annotations

import os
import sys

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"
import keras
from torch import distributed

import embstore as es
from embstore.errors import InvalidArgumentError


def main(rank: int, meeting: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")], name="model")
    optimizer = es.keras.averaged(keras.optimizers.SGD(0.1))
    assert es.keras.averaged(optimizer) is optimizer
    model.compile(optimizer, "mse")
    try:
        model.train_on_batch(np.ones((2, 3), np.float32), np.ones((2, 1), np.float32))
    except InvalidArgumentError as error:
        print(error)
    ids = keras.Input((3,), dtype="int64")
    model = keras.Model(ids, keras.ops.sum(es.keras.Embedding(None, 1)(ids), axis=1))
    model.compile(es.keras.averaged(keras.optimizers.SGD(0.1)), "mse")
    try:
        model.train_on_batch(np.arange(6).reshape(2, 3), np.full((2, 1), [0, np.nan][rank]))
    except InvalidArgumentError as error:
        print(error)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
