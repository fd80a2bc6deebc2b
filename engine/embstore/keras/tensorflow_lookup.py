"""Look-ups that TensorFlow's tapes know, in graphs and outside."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embstore.errors import UnsupportedError
from embstore.keras.first_use import make_as_compiled
from embstore.keras.marks import SIZE
from embstore.keras.steps import Assigned, train_tables
from embstore.keras.table import Table, look_up_many

if TYPE_CHECKING:
    from embstore.keras.rows import Rows

__all__ = ["lookup", "together", "train"]

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class _Ready(threading.local):
    """Of `together`: by the id() of a table what each of its next look-ups gives, in order: a
    tensor of the rows, and one of the look-up's number.
    """

    def __init__(self) -> None:
        self.of_tables: dict[int, list[tuple[Any, Any]]] = {}


_ready = _Ready()


def lookup(table: Table, rows: Rows, ids: Any, training: bool) -> Any:
    def read(keys: Ids) -> tuple[Floats, np.int64]:
        return table.lookup(keys, train=training), np.int64(table.next_number())

    def gather(number: np.int64, keys: Ids, grads: Floats, stand_in: Floats) -> Floats:
        table.check_stand_in(stand_in)
        # A copy: the memory is TensorFlow's, and it has other plans for it.
        return table.gather(int(number), keys.copy(), np.array(grads, np.float32))

    if training and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise UnsupportedError(
            f"{table.name}: rows can't be trained by several replicas of a tf.distribute strategy, "
            "each of which would take a step of its own; train by embstore.cluster.run"
        )
    with tf.init_scope():  # here, since `read` runs in a thread of TensorFlow's
        make_as_compiled([(table, rows)])
    of_table = _ready.of_tables.get(id(table))
    ready = of_table.pop(0) if of_table else None

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(stand_in: Any) -> tuple[Any, Any]:
        values, number = ready or tf.numpy_function(read, [ids], (tf.float32, tf.int64))
        values.set_shape((*ids.shape, table.dim))

        def gradient(upstream: Any) -> Any:
            grads = tf.convert_to_tensor(upstream)
            mark = tf.numpy_function(gather, [number, ids, grads, stand_in], tf.float32)
            mark.set_shape((SIZE,))
            return mark

        return values, gradient

    return differentiable(tf.convert_to_tensor(rows.value))


@contextlib.contextmanager
def together(look_ups: Sequence[tuple[Table, Rows, Any]], training: bool) -> Iterator[None]:
    """As `backend.together`, of tables that have their shards elsewhere."""
    with tf.init_scope():
        make_as_compiled((table, rows) for table, rows, _ in look_ups)
    elsewhere = [(table, ids) for table, _, ids in look_ups if table.is_elsewhere]
    if not elsewhere:
        yield
        return

    def read(*keys: Ids) -> list[Any]:
        tables = [table for table, _ in elsewhere]
        rows = look_up_many(list(zip(tables, keys, strict=True)), train=training)
        return [*rows, *(np.int64(table.next_number()) for table in tables)]

    count = len(elsewhere)
    found = tf.numpy_function(
        read, [ids for _, ids in elsewhere], [tf.float32] * count + [tf.int64] * count
    )
    of_tables: dict[int, list[tuple[Any, Any]]] = {}
    for (table, _), rows, number in zip(elsewhere, found[:count], found[count:], strict=True):
        of_tables.setdefault(id(table), []).append((rows, number))
    _ready.of_tables = of_tables
    try:
        yield
    finally:
        _ready.of_tables = {}


def train(
    assigned: Sequence[Assigned], optimizer: Any, dense_grads: Sequence[Any]
) -> Sequence[Any]:
    """Trains the tables as soon as their gradients are known, and gives the dense gradients once
    they are trained. Those that have their shards elsewhere are trained together; others by as many
    threads as TensorFlow gives them.
    """
    together = [each for each in assigned if each.table.is_elsewhere]
    groups = [[each] for each in assigned if not each.table.is_elsewhere]
    trained = [
        _train_as_one(group, optimizer) for group in ([*groups, together] if together else groups)
    ]
    if tf.executing_eagerly():
        return dense_grads
    with tf.control_dependencies(trained):
        return [None if grad is None else tf.identity(grad) for grad in dense_grads]


def _train_as_one(assigned: Sequence[Assigned], optimizer: Any) -> Any:
    """Returns the operation."""
    tables = [each.table for each in assigned]
    count = len(tables)

    def train(rate: np.float32, *told: Any) -> None:
        loss_scales = [float(scale) for scale in told[count:]]
        train_tables(tables, told[:count], loss_scales, float(rate), optimizer)

    looked_up = [each.looked_up for each in assigned]
    scales = [tf.cast(each.loss_scale, tf.float32) for each in assigned]
    rate = tf.cast(optimizer.learning_rate, tf.float32)
    return tf.numpy_function(train, [rate, *looked_up, *scales], [])
