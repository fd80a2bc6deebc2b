"""Models like those of OpenEmbedding's examples, and a value for its flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from keras_models import keras
from numpy.typing import NDArray

import embstore.openembedding as embed

IDS, FEW_IDS, DIM = 1000, 20, 8
SAMPLES = 128

Inputs = dict[str, NDArray[Any]]


def criteo_like(seed: int = 0) -> tuple[Inputs, NDArray[np.float32]]:
    """Returns features and labels with the names of Criteo's columns."""
    random = np.random.RandomState(seed)
    inputs: Inputs = {
        "C1": (IDS * random.rand(SAMPLES, 1) ** 3).astype(np.int64),
        "C2": random.randint(0, FEW_IDS, (SAMPLES, 1)).astype(np.int64),
        "I1": random.rand(SAMPLES, 1).astype(np.float32),
    }
    labels = ((inputs["C1"] + inputs["C2"]) % 3 == 0).astype(np.float32)
    return inputs, labels


def network(
    make: Any = keras.layers.Embedding, ids: int = IDS, optimizer: Any = None, **arguments: Any
) -> Any:
    """Returns a functional model; with an optimizer, distributed and compiled as in the guide."""
    inputs = {
        "C1": keras.Input((1,), dtype="int64", name="C1"),
        "C2": keras.Input((1,), dtype="int64", name="C2"),
        "I1": keras.Input((1,), name="I1"),
    }
    parts = [
        keras.layers.Flatten()(make(ids, DIM, name="C1_rows", **arguments)(inputs["C1"])),
        keras.layers.Flatten()(keras.layers.Embedding(FEW_IDS, 4, name="C2_rows")(inputs["C2"])),
        inputs["I1"],
    ]
    output = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, output)
    return model if optimizer is None else compiled(embed.distributed_model(model), optimizer)


def compiled(model: Any, optimizer: Any) -> Any:
    model.compile(
        embed.distributed_optimizer(optimizer),
        "binary_crossentropy",
        metrics=["AUC"],
        experimental_run_tf_function=False,
    )
    return model


def train(model: Any, epochs: int = 1, seed: int = 0, **arguments: Any) -> list[float]:
    """Trains the model, and returns the losses of the epochs."""
    inputs, labels = criteo_like(seed)
    history = model.fit(
        inputs, labels, batch_size=32, epochs=epochs, shuffle=False, verbose=0, **arguments
    )
    losses: list[float] = history.history["loss"]
    return losses


def predictions(model: Any) -> NDArray[np.float32]:
    predicted: NDArray[np.float32] = model.predict(criteo_like()[0], verbose=0)
    return predicted


def tables_of(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, embed.Embedding)]


def close(model: Any) -> None:
    """Closes the tables, as the end of a process does: a pool serves one variable at a time."""
    for layer in tables_of(model):
        layer.variable.close()


def save_to_pools(model: Any, filepath: str, include_optimizer: bool = True) -> None:
    """The guide's replacement for `exb.save_server_model`."""
    del include_optimizer
    embed.persist_server_model(model, filepath, 0)


def on_pmem(folder: Path, cache_mb: int = 1) -> str:
    """Returns the guide's `flags.config`, for a folder."""
    return json.dumps({"server": {"pmem_pool_root_path": str(folder), "cache_size": cache_mb}})
