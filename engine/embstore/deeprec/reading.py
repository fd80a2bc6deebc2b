"""Look-ups of embedding variables in a graph, which TensorFlow can differentiate.

A look-up is an operation that calls this process, so a graph with look-ups runs only here.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import NDArray

from embstore.deeprec.tables import table_of
from embstore.errors import InvalidArgumentError

__all__ = ["as_keys", "keys_of", "look_up", "on_cpu"]

_GRADIENT = "EmbstoreRows"
_SUMMED_GRADIENT = "EmbstoreRowsOfBags"
_TRAINED = "embstore_trained_look_ups"  # a collection of operation names


class _Variable(Protocol):
    """The attributes of an embedding variable that look-ups use."""

    @property
    def op(self) -> Any: ...
    @property
    def number(self) -> Any: ...
    @property
    def rows(self) -> Any: ...
    @property
    def dim(self) -> int: ...


def on_cpu() -> Any:
    return tf.device("/device:CPU:0")


def keys_of(variable: _Variable, ids: Any) -> Any:
    """Returns the ids as an int64 tensor of ids.shape."""
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise InvalidArgumentError(
            f"ids: of {variable.op.name} must be a dense tensor, got {type(ids).__name__}; "
            "tf.nn.embedding_lookup_sparse combines the rows of sparse ids"
        )
    return as_keys(f"ids: of {variable.op.name}", tf.convert_to_tensor(ids))


def as_keys(argument: str, ids: Any) -> Any:
    """Returns an integer tensor as int64. Refuses uint64, of which some would become other keys."""
    if not ids.dtype.is_integer or ids.dtype == tf.uint64:
        raise InvalidArgumentError(
            f"{argument} must be integers that int64 has, got {ids.dtype.name}; "
            "tf.strings.to_hash_bucket_fast makes ids of strings"
        )
    return tf.cast(ids, tf.int64)


def look_up(
    variable: _Variable, ids: Any, name: str | None = None, *, for_bags: bool = False
) -> Any:
    """Returns the rows of ids, float32 of ids.shape + (dim,).

    Once `tf.gradients` or an optimizer has asked for its gradient, it reads rows for a training
    step, whose update counts them. Before that it counts and promotes, like look-ups that serve.

    for_bags: repeated ids share a gradient: their sum stands at the id's first place, and zeros at
        the others, so that gradients have the norm that TensorFlow's look-ups of bags give them.
    """
    keys = keys_of(variable, ids)
    graph = keys.graph
    trained = graph.get_collection_ref(_TRAINED)
    operation: list[str] = []

    def read(number: np.int64, keys: NDArray[np.int64], _rows: Any) -> NDArray[np.float32]:
        return table_of(int(number)).lookup(keys, train=operation[0] in trained)

    with (
        tf.name_scope(name, f"{variable.op.name}_lookup") as scope,
        graph.gradient_override_map({"PyFunc": _SUMMED_GRADIENT if for_bags else _GRADIENT}),
    ):
        with on_cpu():
            rows = tf.numpy_function(
                read, [variable.number, keys, variable.rows], tf.float32, name="rows"
            )
        operation.append(rows.op.name)
        rows.set_shape(keys.shape.concatenate([variable.dim]))
        # Not on_cpu: TensorFlow combines rows fast only on the device that their bags are on.
        return tf.identity(rows, name=scope)


@tf.RegisterGradient(_GRADIENT)  # type: ignore[untyped-decorator]
def _gradient(operation: Any, rows_gradient: Any) -> list[Any]:
    """Returns a gradient for each id that was looked up, so that an update counts them all."""
    _, keys, rows = operation.inputs
    operation.graph.add_to_collection(_TRAINED, operation.name)
    values = tf.reshape(tf.convert_to_tensor(rows_gradient), [-1, rows.shape[1]])
    # tf.cond needs the shape: it makes slices without rows if there was no look-up.
    return [None, None, tf.IndexedSlices(values, tf.reshape(keys, [-1]), tf.shape(rows))]


@tf.RegisterGradient(_SUMMED_GRADIENT)  # type: ignore[untyped-decorator]
def _summed_gradient(operation: Any, rows_gradient: Any) -> list[Any]:
    keys = operation.inputs[1]
    count = tf.size(keys)
    distinct, numbers = tf.unique(keys)
    firsts = tf.math.unsorted_segment_min(tf.range(count), numbers, tf.size(distinct))
    sums = tf.math.unsorted_segment_sum(rows_gradient, tf.gather(firsts, numbers), count)
    gradients: list[Any] = _gradient(operation, sums)
    return gradients
