"""Which of the backends' look-ups runs, of those that Keras may be set to."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from embstore.errors import UnsupportedError
from embstore.keras.steps import Assigned, train_tables, train_together

if TYPE_CHECKING:
    from embstore.keras.rows import Rows
    from embstore.keras.table import Table

__all__ = ["check_backend", "lookup", "together"]


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


def together(
    look_ups: Sequence[tuple[Table, Rows, Any]], training: bool
) -> contextlib.AbstractContextManager[Any]:
    """In it look-ups of these ids, which are about to be made in this order, have their rows:
    servers are asked once for all.
    """
    if keras.backend.backend() == "torch":
        from embstore.keras import torch_lookup

        return torch_lookup.together(look_ups)
    from embstore.keras import tensorflow_lookup

    return tensorflow_lookup.together(look_ups, training)


def _train(
    assigned: Sequence[Assigned], optimizer: Any, dense_grads: Sequence[Any]
) -> Sequence[Any]:
    """As soon as the gradients are known; returns the dense ones, as `train_together` says."""
    if keras.backend.backend() == "torch":
        train_tables(
            [each.table for each in assigned],
            [keras.ops.convert_to_numpy(each.looked_up) for each in assigned],
            [float(each.loss_scale) for each in assigned],
            float(optimizer.learning_rate),
            optimizer,
        )
        return dense_grads
    from embstore.keras import tensorflow_lookup

    return tensorflow_lookup.train(assigned, optimizer, dense_grads)


train_together(_train)
