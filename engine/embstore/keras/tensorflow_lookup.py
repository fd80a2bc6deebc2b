"""Look-ups that TensorFlow's tapes can differentiate, in graphs and outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embstore.errors import UnsupportedError
from embstore.keras.first_use import make_with_model_optimizer
from embstore.keras.marks import SIZE
from embstore.keras.steps import AssignedGradient, train_tables
from embstore.keras.table import Table, look_up_many

if TYPE_CHECKING:
    from embstore.keras.rows import Rows

__all__ = ["lookup", "train"]

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


def lookup(look_ups: Sequence[tuple[Table, Rows, Any]], training: bool) -> list[Any]:
    tables = [table for table, _, _ in look_ups]

    def read(*keys: Ids) -> list[Any]:
        rows = look_up_many(list(zip(tables, keys, strict=True)), train=training)
        return [*rows, *(np.int64(table.next_number()) for table in tables)]

    if training and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise UnsupportedError(
            f"{tables[0].name}: rows can't be trained by several replicas of a tf.distribute "
            "strategy, each of which would take a step of its own; train by embstore.cluster.run"
        )
    with tf.init_scope():  # not in `read`, which runs in one of TensorFlow's threads
        make_with_model_optimizer((table, rows) for table, rows, _ in look_ups)
    count = len(tables)
    kinds = [tf.float32] * count + [tf.int64] * count
    found = tf.numpy_function(read, [ids for _, _, ids in look_ups], kinds)
    return [
        _differentiable(*look_up, values, number)
        for look_up, values, number in zip(look_ups, found[:count], found[count:], strict=True)
    ]


def _differentiable(table: Table, rows: Rows, ids: Any, values: Any, number: Any) -> Any:
    """Returns the values, which the look-up of that number read, as a differentiable tensor."""
    values.set_shape((*ids.shape, table.dim))

    def gather(number: np.int64, keys: Ids, grads: Floats, stand_in: Floats) -> Floats:
        table.check_stand_in(stand_in)
        # Copies both: the memory is TensorFlow's, which uses it again.
        return table.gather(int(number), keys.copy(), np.array(grads, np.float32))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(stand_in: Any) -> tuple[Any, Any]:
        def gradient(upstream: Any) -> Any:
            grads = tf.convert_to_tensor(upstream)
            mark = tf.numpy_function(gather, [number, ids, grads, stand_in], tf.float32)
            mark.set_shape((SIZE,))
            return mark

        return values, gradient

    return differentiable(tf.convert_to_tensor(rows.value))


def train(
    assigned: Sequence[AssignedGradient], optimizer: Any, dense_grads: Sequence[Any]
) -> Sequence[Any]:
    """Trains the tables as soon as their gradients are known. Returns the dense gradients, which in
    a graph are available once the tables are trained. Tables with remote shards are trained
    together, others in as many threads as TensorFlow has.
    """
    remote = [each for each in assigned if each.table.is_remote]
    groups = [[each] for each in assigned if not each.table.is_remote]
    trained = [
        _train_as_one(group, optimizer) for group in ([*groups, remote] if remote else groups)
    ]
    if tf.executing_eagerly():
        return dense_grads
    with tf.control_dependencies(trained):
        return [None if grad is None else tf.identity(grad) for grad in dense_grads]


def _train_as_one(assigned: Sequence[AssignedGradient], optimizer: Any) -> Any:
    """Returns the operation that trains the tables together."""
    tables = [each.table for each in assigned]
    count = len(tables)

    def train(rate: np.float32, *values: Any) -> None:
        loss_scales = [float(scale) for scale in values[count:]]
        train_tables(tables, values[:count], loss_scales, float(rate), optimizer)

    mark_sum = [each.mark_sum for each in assigned]
    scales = [tf.cast(each.loss_scale, tf.float32) for each in assigned]
    rate = tf.cast(optimizer.learning_rate, tf.float32)
    return tf.numpy_function(train, [rate, *mark_sum, *scales], [])
