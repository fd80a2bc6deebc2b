"""TensorFlow datasets that request rows as they read batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embstore.keras.look_ups import LookUps, forget_requested, trained_tables
from embstore.table.many import prefetch_many

__all__ = ["prefetched_dataset"]


def prefetched_dataset(dataset: Any, look_ups: LookUps) -> Any:
    """Returns the dataset with its batches' rows requested, in order, one batch ahead."""
    layers = list(look_ups.layers())

    def begin(number: np.int64) -> np.int64:
        forget_requested(trained_tables(look_ups))
        return number

    def prefetch(*ids: NDArray[np.int64]) -> np.int64:
        ids_of_layers = list(zip(layers, ids, strict=True))
        prefetch_many(
            [
                (table.variable, [each for layer, each in ids_of_layers if layer.table is table])
                for table in trained_tables(look_ups)
            ]
        )
        return np.int64(len(ids))

    def request(*parts: Any) -> Any:
        batch = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        inputs, *_ = keras.utils.unpack_x_y_sample_weight(batch)
        requested = tf.numpy_function(prefetch, look_ups.ids(inputs), tf.int64)
        with tf.control_dependencies([requested]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    once = tf.data.Dataset.from_tensors(np.int64(0)).map(
        lambda number: tf.numpy_function(begin, [number], tf.int64)
    )
    requested = once.flat_map(lambda _: dataset.map(request))
    return requested.apply(tf.data.experimental.assert_cardinality(dataset.cardinality())).prefetch(
        1
    )
