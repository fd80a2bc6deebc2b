"""TensorFlow's look-ups, extended to embedding variables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec.reading import keys_of, look_up
from embstore.deeprec.variable import EmbeddingVariable, Partition
from embstore.errors import InvalidArgumentError

__all__ = [
    "extend_embedding_lookup",
    "extend_embedding_lookup_sparse",
    "extend_gradients",
    "extend_safe_embedding_lookup_sparse",
]


# TensorFlow combines the rows of all ids without looking for repeated ids first.
_FAST = {"allow_fast_lookup": True}


def extend_embedding_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extends `tf.nn.embedding_lookup` to embedding variables."""

    @functools.wraps(original)
    def embedding_lookup(
        params: Any,
        ids: Any,
        partition_strategy: str = "mod",
        name: str | None = None,
        validate_indices: bool = True,
        max_norm: float | None = None,
        **options: Any,
    ) -> Any:
        variable = _variable_in(params)
        if variable is None:
            return original(
                params,
                ids,
                partition_strategy=partition_strategy,
                name=name,
                validate_indices=validate_indices,
                max_norm=max_norm,
                **options,
            )
        rows = look_up(variable, ids, name)
        return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])

    return embedding_lookup


def extend_embedding_lookup_sparse(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extends `tf.nn.embedding_lookup_sparse` to embedding variables."""

    @functools.wraps(original)
    def embedding_lookup_sparse(params: Any, sp_ids: Any, sp_weights: Any, **options: Any) -> Any:
        variable = _variable_in(params)
        if variable is None:
            return original(params, sp_ids, sp_weights, **options)
        rows = look_up(variable, _values_of(variable, sp_ids), for_bags=True)
        return original(rows, _numbered(sp_ids, 0), sp_weights, **options | _FAST)

    return _with_names(embedding_lookup_sparse, original)


def extend_safe_embedding_lookup_sparse(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extends `tf.nn.safe_embedding_lookup_sparse` to embedding variables: each id is valid."""

    @functools.wraps(original)
    def safe_embedding_lookup_sparse(
        embedding_weights: Any,
        sparse_ids: Any,
        sparse_weights: Any = None,
        combiner: str = "mean",
        default_id: int | None = None,
        **options: Any,
    ) -> Any:
        variable = _variable_in(embedding_weights)
        if variable is None:
            return original(
                embedding_weights, sparse_ids, sparse_weights, combiner, default_id, **options
            )
        if sparse_weights is not None and combiner != "sum":
            sparse_ids, sparse_weights = _with_positive_weights(sparse_ids, sparse_weights)
        values = _values_of(variable, sparse_ids)
        # The row of empty bags comes first, since it must exist even if there are no other rows.
        if default_id is None:
            rows = look_up(variable, values, for_bags=True)
            rows, first_number = tf.concat([tf.zeros([1, variable.dim]), rows], 0), 1
        else:
            empty = _id_of_empty_bags(sparse_ids, default_id)
            values = tf.concat([empty, keys_of(variable, values)], 0)
            rows, first_number = look_up(variable, values, for_bags=True), tf.size(empty)
        return original(
            rows,
            _numbered(sparse_ids, first_number),
            sparse_weights,
            combiner,
            None if default_id is None else 0,
            **options | _FAST,
        )

    return _with_names(safe_embedding_lookup_sparse, original)


def _id_of_empty_bags(sparse_ids: Any, default_id: int) -> Any:
    """Returns default_id, int64 (1,), or no id if no bag is empty: then its row isn't trained."""
    bags = tf.sparse.reshape(sparse_ids, tf.stack([-1, sparse_ids.dense_shape[-1]]))
    _, is_empty = tf.sparse.fill_empty_rows(bags, tf.zeros([], bags.dtype))
    is_any_empty = tf.cast(tf.reduce_any(is_empty), tf.int32)
    return tf.fill([is_any_empty], tf.constant(default_id, tf.int64))


def extend_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extends `tf.gradients` to embedding variables: tf.IndexedSlices of ids and gradients."""

    @functools.wraps(original)
    def gradients(ys: Any, xs: Any, *arguments: Any, **options: Any) -> Any:
        targets = xs.rows if isinstance(xs, EmbeddingVariable) else xs
        if isinstance(xs, (list, tuple)):
            targets = [x.rows if isinstance(x, EmbeddingVariable) else x for x in xs]
        return original(ys, targets, *arguments, **options)

    return gradients


def _variable_in(params: Any) -> EmbeddingVariable | None:
    """Returns the embedding variable in a look-up's `params`: itself, or a list of it alone."""
    if isinstance(params, (list, tuple)) and len(params) == 1:
        params = params[0]
    if isinstance(params, (list, tuple)) and any(
        isinstance(each, (EmbeddingVariable, Partition)) for each in params
    ):
        if all(isinstance(each, Partition) for each in params):
            variable: EmbeddingVariable = params[0]._variable
            if all(each._variable is variable for each in params) and len(params) == len(variable):
                return variable
        raise InvalidArgumentError(
            "params must be one embedding variable, which looks its partitions up itself, got "
            f"{params}"
        )
    if isinstance(params, Partition) and len(params._variable) == 1:
        return params._variable
    if isinstance(params, Partition):
        raise InvalidArgumentError(
            f"params must be the embedding variable whose partition {params.name} is"
        )
    return params if isinstance(params, EmbeddingVariable) else None


def _values_of(variable: EmbeddingVariable, ids: Any) -> Any:
    if not isinstance(ids, tf.SparseTensor):
        raise InvalidArgumentError(
            f"ids: of {variable.op.name} must be a tf.SparseTensor, got {type(ids).__name__}; "
            "tf.RaggedTensor.to_sparse makes one"
        )
    return ids.values


def _numbered(ids: Any, first: Any) -> Any:
    """Returns the ids' bags with a number in place of each id, in their order."""
    numbers = tf.range(first, first + tf.size(ids.values))
    return tf.SparseTensor(ids.indices, tf.cast(numbers, tf.int64), ids.dense_shape)


def _with_positive_weights(ids: Any, weights: Any) -> tuple[Any, Any]:
    """Removes ids without a positive weight, which means to leave them out: they get no rows."""
    is_positive = tf.greater(weights.values, 0)
    return (
        tf.SparseTensor(
            tf.boolean_mask(ids.indices, is_positive),
            tf.boolean_mask(ids.values, is_positive),
            ids.dense_shape,
        ),
        tf.SparseTensor(
            tf.boolean_mask(ids.indices, is_positive),
            tf.boolean_mask(weights.values, is_positive),
            ids.dense_shape,
        ),
    )


def _with_names(extended: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `extended`, with all arguments by name, also those that `original` takes by
    position.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*arguments: Any, **options: Any) -> Any:
        return extended(**signature.bind(*arguments, **options).arguments)

    return function
