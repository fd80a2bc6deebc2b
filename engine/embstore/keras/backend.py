"""Chooses the look-up for the backend that Keras is set to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from embstore.errors import UnsupportedError
from embstore.keras.steps import AssignedGradient, train_together

if TYPE_CHECKING:
    from embstore.keras.rows import Rows
    from embstore.keras.table import Table

__all__ = ["check_backend", "lookup"]


def check_backend() -> None:
    backend = keras.backend.backend()
    if backend not in ("torch", "tensorflow"):
        raise UnsupportedError(
            f"Keras runs on {backend} here, and embstore.keras only on torch and tensorflow; set "
            "KERAS_BACKEND=torch before Keras is imported"
        )


def lookup(look_ups: Sequence[tuple[Table, Rows, Any]], training: bool) -> list[Any]:
    """Returns the rows of each look-up's int64 ids as differentiable tensors, float32 of ids.shape
    + (dim,). The servers get one request for all.
    """
    found: list[Any] = _backend_module().lookup(look_ups, training)
    return found


def _train(
    assigned: Sequence[AssignedGradient], optimizer: Any, dense_grads: Sequence[Any]
) -> Sequence[Any]:
    """Trains the tables as soon as the gradients are known. Returns the dense gradients, as
    `train_together` describes.
    """
    grads: Sequence[Any] = _backend_module().train(assigned, optimizer, dense_grads)
    return grads


def _backend_module() -> Any:
    """Returns the backend's module of these functions, which imports the backend."""
    if keras.backend.backend() == "torch":
        from embstore.keras import torch_lookup

        return torch_lookup
    from embstore.keras import tensorflow_lookup

    return tensorflow_lookup


train_together(_train)
