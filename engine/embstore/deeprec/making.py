"""Makes embedding variables in the current variable scope, as `tf.get_variable` does others."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from embstore.deeprec.reading import on_cpu
from embstore.deeprec.variable import EMBEDDING_VARIABLES, EmbeddingVariable, variables_of
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.initializers import (
    Constant,
    Initializer,
    initial_rows,
    to_initializer,
    with_seed_of,
)
from embstore.options import EmbeddingVariableOption
from embstore.table import checks

__all__ = ["get_embedding_variable"]

_NUMBERS = "embstore_table_numbers"
# The size of a table for partitioners that look at the size of what they divide. A table has no
# limit.
_MANY_ROWS = 1 << 40


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    partitioner: Callable[..., Sequence[int]] | None = None,
    validate_shape: bool = True,
    custom_getter: Any = None,
    constraint: Any = None,
    init_data_source: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> EmbeddingVariable:
    """Returns a variable of the current variable scope, like `tf.get_variable`: with reuse, the
    existing one.

    key_dtype: int64 or int32, the type of ids in look-ups.
    value_dtype: float32 or None, which means the same.
    initializer: of TensorFlow's or `embstore.initializers`, a class of either, a function of the
        shape (default_value_dim, dim), or given values; `ev_option.init_option.initializer` takes
        precedence. None: the scope's, else `tf.truncated_normal_initializer()`.
    partitioner: determines the number of partitions; None: the scope's, else one. The engine's hash
        spreads keys over them.
    collections: in addition to TRAINABLE_VARIABLES (if trainable) and EMBEDDING_VARIABLES; None:
        GLOBAL_VARIABLES.
    custom_getter: as in `tf.get_variable`; it gets the variable that holds the table's number.
    validate_shape: has no effect.
    regularizer, caching_device, constraint, init_data_source: must be None.
    """
    del validate_shape
    dim = checks.integer("embedding_dim", embedding_dim, at_least=1)
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise InvalidArgumentError(
            f"ev_option must be a tf.EmbeddingVariableOption, got {type(ev_option).__name__}"
        )
    _check_types(key_dtype, value_dtype)
    scope = tf.get_variable_scope()
    unsupported = {
        "regularizer": regularizer if regularizer is not None else scope.regularizer,
        "constraint": constraint if constraint is not None else scope.constraint,
        "caching_device": caching_device,
        "init_data_source": init_data_source,
    }
    for argument, value in unsupported.items():
        if value is not None:
            raise UnsupportedError(
                f"{argument}: rows of an embedding variable can't have one; leave it out, and make "
                f"{name} outside of a variable scope that has one"
            )
    checks.variable_name(name)
    checks.variable_name(f"{scope.name}/{name}" if scope.name else name)
    partitions = _partition_num(partitioner or scope.partitioner, dim)
    with tf.variable_scope(scope, auxiliary_name_scope=False) as plain_scope, on_cpu():
        plain_scope.set_partitioner(None)
        number = tf.get_variable(
            name,
            shape=(),
            dtype=tf.int64,
            initializer=tf.zeros_initializer(),
            trainable=False,
            collections=[_NUMBERS],
            custom_getter=custom_getter,
            use_resource=True,
        )
    for variable in variables_of(number.graph):
        if variable.op is number.op:
            return _check_same(variable, dim, ev_option)
    chosen = option.init_option.initializer
    if chosen is None:
        chosen = initializer if initializer is not None else scope.initializer
    if chosen is None:
        chosen = tf.truncated_normal_initializer()
    shape = (option.init_option.default_value_dim, dim)
    with tf.init_scope():
        variable = EmbeddingVariable(
            number,
            dim,
            lambda: _initial_rows(number.op.name, chosen, shape),
            option,
            partitions,
            trainable,
            tf.as_dtype(key_dtype),
        )
    _add_to_collections(variable, collections)
    return variable


def _check_types(key_dtype: Any, value_dtype: Any) -> None:
    if tf.as_dtype(key_dtype) not in (tf.int64, tf.int32):
        raise InvalidArgumentError(f"key_dtype must be int64 or int32, got {key_dtype!r}")
    if value_dtype is not None and tf.as_dtype(value_dtype) != tf.float32:
        raise InvalidArgumentError(f"value_dtype must be float32 or None, got {value_dtype!r}")


def _partition_num(partitioner: Callable[..., Sequence[int]] | None, dim: int) -> int:
    if partitioner is None:
        return 1
    counts = list(partitioner(shape=tf.TensorShape([_MANY_ROWS, dim]), dtype=tf.float32))
    if len(counts) != 2 or counts[1] != 1:
        raise InvalidArgumentError(
            f"partitioner must divide rows, not their values, got {counts} for the axes of rows "
            "and values"
        )
    return checks.integer("partitioner", int(counts[0]), at_least=1, unit="partitions")


def _check_same(
    variable: EmbeddingVariable, dim: int, ev_option: EmbeddingVariableOption | None
) -> EmbeddingVariable:
    if variable.dim != dim:
        raise InvalidArgumentError(
            f"embedding_dim: {variable.op.name} exists with {variable.dim} values a row, got {dim}"
        )
    if ev_option is not None:
        for part in ("storage_option", "filter_option", "evict_option"):
            existing, given = getattr(variable.ev_option, part), getattr(ev_option, part)
            if _fields(given) != _fields(existing):
                raise InvalidArgumentError(
                    f"ev_option: {variable.op.name} exists with the {part} {existing}, got {given}"
                )
    return variable


def _fields(option: Any) -> Any:
    """Returns the fields to compare: DeepRec's names of options are classes of their own."""
    return None if option is None else dataclasses.asdict(option)


def _add_to_collections(variable: EmbeddingVariable, collections: Sequence[str] | None) -> None:
    keys = [tf.GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    if variable.trainable:
        keys.append(tf.GraphKeys.TRAINABLE_VARIABLES)
    for key in dict.fromkeys([*keys, EMBEDDING_VARIABLES]):
        variable.graph.add_to_collection(key, variable)


def _initial_rows(name: str, initializer: Any, shape: tuple[int, int]) -> Any:
    """Returns a tensor of the initial rows. TensorFlow draws them if it has the initializer."""
    if isinstance(initializer, (int, float, list, tuple, np.ndarray)):
        given = Constant(initializer)(shape)  # evaluated now, so that a wrong shape raises here
        return tf.numpy_function(lambda: given, [], tf.float32)
    initializer_of_rows: Initializer = with_seed_of(name, to_initializer(initializer))
    if "dtype" in inspect.signature(initializer_of_rows).parameters:
        return initializer_of_rows(list(shape), dtype=tf.float32)  # type: ignore[arg-type,call-arg]
    return tf.numpy_function(lambda: initial_rows(initializer_of_rows, shape), [], tf.float32)
