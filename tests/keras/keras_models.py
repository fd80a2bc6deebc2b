"""Small models over an embedding, their training data, and comparisons between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import embstore as es

keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")

KEYS, DIM, LENGTH, BATCH = 48, 4, 3, 16
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def ids_without_duplicates(batches: int = 6) -> NDArray[np.int64]:
    """Returns ids of shape (batches * BATCH, LENGTH); each batch has each key once."""
    random = np.random.RandomState(3)
    return np.concatenate(
        [random.permutation(KEYS).reshape(BATCH, LENGTH) for _ in range(batches)], dtype=np.int64
    )


def ids_with_duplicates() -> NDArray[np.int64]:
    random = np.random.RandomState(4)
    return (KEYS * random.rand(6 * BATCH, LENGTH) ** 2).astype(np.int64)


def labels_of(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    labels: NDArray[np.float32] = np.sin(ids.sum(axis=1, keepdims=True)).astype(np.float32)
    return labels


def over(embedding: Any, calls: int = 1) -> Any:
    """Returns a model that looks its ids up `calls` times."""
    ids = keras.Input((LENGTH,), dtype="int64")
    rows = embedding(ids)
    for shift in range(1, calls):
        rows = keras.layers.Multiply()([rows, embedding((ids + shift) % KEYS)])
    hidden = keras.layers.Flatten()(rows)
    return keras.Model(ids, keras.layers.Dense(1, name="head")(hidden))


def adagrad() -> Any:
    return keras.optimizers.Adagrad(0.1)


def own_and_theirs(
    make_optimizer: Callable[[], Any], calls: int = 1, **arguments: Any
) -> tuple[Any, Any]:
    """Returns two models with equal weights: over embstore's table, and over Keras's embedding."""
    theirs = over(keras.layers.Embedding(KEYS, DIM, name="table"), calls)
    theirs.compile(make_optimizer(), "mse")
    own = es.keras.distributed_model(theirs, **arguments)
    own.compile(make_optimizer(), "mse")
    return own, theirs


def fit(model: Any, ids: NDArray[np.int64], **arguments: Any) -> list[float]:
    """Trains the model, and returns the losses of the epochs."""
    arguments = {"epochs": 2, "batch_size": BATCH, "shuffle": False, "verbose": 0, **arguments}
    losses: list[float] = model.fit(ids, labels_of(ids), **arguments).history["loss"]
    return losses


def rows_of(model: Any, name: str = "table") -> NDArray[np.float32]:
    layer = model.get_layer(name)
    if isinstance(layer, es.keras.Embedding):
        return layer.dense_rows()
    rows: NDArray[np.float32] = layer.get_weights()[0]
    return rows


def predictions(model: Any, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    predicted: NDArray[np.float32] = model.predict(ids, verbose=0)
    return predicted


def assert_trained_alike(own: Any, theirs: Any, ids: NDArray[np.int64], **arguments: Any) -> None:
    start = rows_of(theirs).copy()
    np.testing.assert_array_equal(rows_of(own), start)
    np.testing.assert_allclose(fit(own, ids, **arguments), fit(theirs, ids, **arguments), rtol=1e-5)
    np.testing.assert_allclose(rows_of(own), rows_of(theirs), rtol=1e-4, atol=1e-6)
    assert np.abs(rows_of(own) - start).max() > 1e-3, "nothing was trained"
