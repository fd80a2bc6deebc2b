"""Which of the backends' look-ups runs, of those that Keras may be set to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from embstore.errors import UnsupportedError

if TYPE_CHECKING:
    from embstore.keras.rows import Rows
    from embstore.keras.table import Table

__all__ = ["check_backend", "lookup", "train_when"]


def check_backend() -> None:
    backend = keras.backend.backend()
    if backend not in ("torch", "tensorflow"):
        raise UnsupportedError(
            f"Keras runs on {backend} here, and embstore.keras only on torch and tensorflow; set "
            "KERAS_BACKEND=torch before Keras is imported"
        )


def lookup(table: Table, rows: Rows, ids: Any, training: bool) -> Any:
    """The rows of int64 `ids`: float32 of ids.shape + (dim,), a tensor that autograd knows."""
    if keras.backend.backend() == "torch":
        from embstore.keras import torch_lookup

        return torch_lookup.lookup(table, rows, ids)
    from embstore.keras import tensorflow_lookup

    return tensorflow_lookup.lookup(table, rows, ids, training)


def train_when(table: Table, looked_up: Any, optimizer: Any, loss_scale: Any) -> None:
    """`Table.train`, as soon as the gradient `looked_up`, a scalar tensor, is known."""
    if keras.backend.backend() == "torch":
        rate = float(optimizer.learning_rate)
        table.train(float(looked_up), rate, float(loss_scale), optimizer)
        return
    from embstore.keras import tensorflow_lookup

    tensorflow_lookup.train_when(table, looked_up, optimizer, loss_scale)
