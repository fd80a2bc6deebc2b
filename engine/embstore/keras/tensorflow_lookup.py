"""Look-ups that TensorFlow's tapes know, in graphs and outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embstore.keras.table import Table

if TYPE_CHECKING:
    from embstore.keras.rows import Rows

__all__ = ["lookup", "train_when"]


def lookup(table: Table, rows: Rows, ids: Any, training: bool) -> Any:
    def read(keys: NDArray[np.int64]) -> tuple[NDArray[np.float32], np.int64]:
        return table.lookup(keys, train=training), np.int64(table.next_number())

    def gather(number: np.int64, keys: NDArray[np.int64], grads: NDArray[np.float32]) -> np.float32:
        # A copy: the memory is TensorFlow's, and it has other plans for it.
        return np.float32(table.gather(int(number), keys.copy(), np.array(grads, np.float32)))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(_parameter: Any) -> tuple[Any, Any]:
        values, number = tf.numpy_function(read, [ids], (tf.float32, tf.int64))
        values.set_shape((*ids.shape, table.dim))

        def gradient(upstream: Any) -> Any:
            grads = tf.convert_to_tensor(upstream)
            counted = tf.numpy_function(gather, [number, ids, grads], tf.float32)
            counted.set_shape(())
            return counted

        return values, gradient

    return differentiable(tf.convert_to_tensor(rows.value))


def train_when(table: Table, looked_up: Any, optimizer: Any, loss_scale: Any) -> None:
    def train(count: np.float32, rate: np.float32, scale: np.float32) -> None:
        table.train(float(count), float(rate), float(scale), optimizer)

    rate = tf.cast(optimizer.learning_rate, tf.float32)
    tf.numpy_function(train, [looked_up, rate, tf.cast(loss_scale, tf.float32)], [])
