"""Feature columns over embedding variables, for TensorFlow's own functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from embstore.deeprec.making import get_embedding_variable
from embstore.deeprec.reading import as_keys
from embstore.deeprec.tensorflow_inside import columns, old_columns
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.options import EmbeddingVariableOption
from embstore.table import checks

__all__ = [
    "categorical_column_with_embedding",
    "extend_embedding_column",
    "sequence_categorical_column_with_embedding",
    "sequence_input_layer",
]

_MAX_BUCKETS = (1 << 63) - 1


class EmbeddingCategoricalColumn(
    columns.CategoricalColumn,  # type: ignore[misc]
    old_columns._CategoricalColumn,  # type: ignore[misc]
):
    """A feature whose values are keys of an embedding variable."""

    def __init__(
        self,
        key: str,
        dtype: Any,
        partition_num: int | None,
        ev_option: EmbeddingVariableOption | None,
    ) -> None:
        self.key = key
        self.dtype = dtype
        self.partition_num = partition_num
        self.ev_option = ev_option

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return self.key

    @property
    def parents(self) -> list[str]:
        return [self.key]

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: tf.io.VarLenFeature(self.dtype)}

    @property
    def _parse_example_spec(self) -> dict[str, Any]:
        return self.parse_example_spec

    @property
    def num_buckets(self) -> int:
        raise UnsupportedError(
            f"{self.key}: every int64 is a key, so the column has no number of buckets; give it to "
            "tf.feature_column.embedding_column alone, once for each variable"
        )

    @property
    def _num_buckets(self) -> int:
        return self.num_buckets

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        return self._ids(transformation_cache.get(self.key, state_manager))

    def _transform_feature(self, inputs: Any) -> Any:
        return self._ids(inputs.get(self.key))

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        ids = transformation_cache.get(self, state_manager)
        return columns.CategoricalColumn.IdWeightPair(ids, None)

    def _get_sparse_tensors(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        del weight_collections, trainable
        return columns.CategoricalColumn.IdWeightPair(inputs.get(self), None)

    def get_config(self) -> NoReturn:
        raise UnsupportedError(f"{self.key}: a column over an embedding variable has no config")

    @classmethod
    def from_config(
        cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None
    ) -> Any:
        del config, custom_objects, columns_by_name
        raise UnsupportedError("a column over an embedding variable has no config")

    def _ids(self, feature: Any) -> Any:
        """Returns a feature, a tf.SparseTensor, as int64 ids. Strings become DeepRec's hashes."""
        values = columns._to_sparse_input_and_drop_ignore_values(feature)
        if self.dtype.is_integer != values.dtype.is_integer or not (
            values.dtype.is_integer or values.dtype == tf.string
        ):
            raise InvalidArgumentError(
                f"features[{self.key!r}] must hold {self.dtype.name} values, as the column's dtype "
                f"says, got {values.dtype.name}"
            )
        if values.dtype == tf.string:
            ids = tf.strings.to_hash_bucket_fast(values.values, _MAX_BUCKETS)
        else:
            ids = as_keys(f"features[{self.key!r}]", values.values)
        return tf.SparseTensor(values.indices, ids, values.dense_shape)


class EmbeddingColumn(columns.EmbeddingColumn):  # type: ignore[misc]
    """TensorFlow's EmbeddingColumn with the rows of an embedding variable as weights."""

    def create_state(self, state_manager: Any) -> NoReturn:
        del state_manager
        raise UnsupportedError(
            f"{self.name}: Keras's feature layers can't have an embedding variable; use "
            "tf.feature_column.input_layer, or an embstore.keras.Embedding"
        )

    def _old_get_dense_tensor_internal(
        self, sparse_tensors: Any, weight_collections: Any, trainable: Any
    ) -> Any:
        column = _embedding_categorical_column(self.categorical_column)
        partitioner = None
        if column.partition_num is not None:
            partitioner = tf.fixed_size_partitioner(column.partition_num)
        weights = get_embedding_variable(
            "embedding_weights",
            self.dimension,
            initializer=self.initializer,
            trainable=self.trainable and trainable is not False,
            collections=_with_global_variables(weight_collections),
            partitioner=partitioner,
            ev_option=column.ev_option,
        )
        ids, weights_of_ids = sparse_tensors.id_tensor, sparse_tensors.weight_tensor
        rank = tf.dimension_value(ids.dense_shape.shape[0])
        is_safe = self.use_safe_embedding_lookup or rank is None or rank > 2
        look_up = tf.nn.safe_embedding_lookup_sparse if is_safe else tf.nn.embedding_lookup_sparse
        return look_up(
            weights,
            ids,
            weights_of_ids,
            combiner=self.combiner,
            max_norm=self.max_norm,
            name=f"{self.name}_weights",
        )


def categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> EmbeddingCategoricalColumn:
    """Returns the feature `key`, for `tf.feature_column.embedding_column` and
    weighted_categorical_column.

    dtype: an integer type; or tf.string, whose values become ids by tf.strings.to_hash_bucket_fast.
    partition_num: the variable's; None: as the variable scope's partitioner says, else 1.
    """
    if not isinstance(key, str) or not key:
        raise InvalidArgumentError(f"key must be a string that isn't empty, got {key!r}")
    kind = tf.as_dtype(dtype)
    if not kind.is_integer and kind != tf.string:
        raise InvalidArgumentError(f"dtype must be string or of integers, got {kind.name}")
    if partition_num is not None:
        checks.integer("partition_num", partition_num, at_least=1)
    if ev_option is not None and not isinstance(ev_option, EmbeddingVariableOption):
        raise InvalidArgumentError(
            f"ev_option must be a tf.EmbeddingVariableOption, got {type(ev_option).__name__}"
        )
    return EmbeddingCategoricalColumn(key, kind, partition_num, ev_option)


def sequence_categorical_column_with_embedding(
    key: str,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> Any:
    """Returns the column of `categorical_column_with_embedding`, for `sequence_input_layer`."""
    column = categorical_column_with_embedding(key, dtype, partition_num, ev_option)
    return columns.SequenceCategoricalColumn(column)


def extend_embedding_column(original: Any) -> Any:
    """Extends `tf.feature_column.embedding_column` to columns over embedding variables."""

    signature = inspect.signature(original)

    @functools.wraps(original)
    def embedding_column(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        values = bound.arguments
        if not _is_over_embedding_variable(values["categorical_column"]):
            return original(*arguments, **options)
        dimension = checks.integer("dimension", values["dimension"], at_least=1)
        checks.choice("combiner", values["combiner"], ("mean", "sqrtn", "sum"))
        for name in ("ckpt_to_load_from", "tensor_name_in_ckpt"):
            if values[name] is not None:
                raise UnsupportedError(
                    f"{name}: rows come from checkpoints by tf.train.Saver or embstore.restore; "
                    "leave it out"
                )
        if values["initializer"] is None:
            values["initializer"] = tf.truncated_normal_initializer(stddev=dimension**-0.5)
        return EmbeddingColumn(**values)

    return embedding_column


def sequence_input_layer(
    features: Mapping[str, Any],
    feature_columns: Sequence[Any],
    weight_collections: Sequence[str] | None = None,
    trainable: bool = True,
) -> tuple[Any, Any]:
    """Returns the sequence columns side by side in the order of their names, float32 (examples,
    positions, dimensions), and each example's length, int64 (examples,), which must be equal in all
    columns.
    """
    chosen = list(feature_columns) if isinstance(feature_columns, Sequence) else [feature_columns]
    if not chosen:
        raise InvalidArgumentError("feature_columns must hold at least one column")
    inputs = old_columns._LazyBuilder(features)
    outputs, lengths = [], []
    with tf.variable_scope(None, default_name="sequence_input_layer"):
        for column in sorted(chosen, key=lambda column: str(column.name)):
            if not isinstance(column, old_columns._SequenceDenseColumn):
                raise InvalidArgumentError(
                    f"feature_columns: {column.name} isn't a sequence column; make its categorical "
                    "column by a sequence_categorical_column_with_ function"
                )
            with tf.variable_scope(None, default_name=column._var_scope_name):
                dense, length = column._get_sequence_dense_tensor(
                    inputs, weight_collections=weight_collections, trainable=trainable
                )
                shape = tf.shape(dense)
                size = column._variable_shape.num_elements()
                outputs.append(tf.reshape(dense, [shape[0], shape[1], size]))
                lengths.append(length)
        alike = [
            tf.assert_equal(
                lengths[0], length, message="feature_columns: sequences of an example differ"
            )
            for length in lengths[1:]
        ]
        with tf.control_dependencies(alike):
            return tf.concat(outputs, -1), tf.identity(lengths[0])


def _is_over_embedding_variable(column: Any) -> bool:
    return isinstance(_innermost(column), EmbeddingCategoricalColumn)


def _embedding_categorical_column(column: Any) -> EmbeddingCategoricalColumn:
    innermost: EmbeddingCategoricalColumn = _innermost(column)
    return innermost


def _innermost(column: Any) -> Any:
    """Returns the column inside columns that wrap others: weighted and sequence columns."""
    while hasattr(column, "categorical_column"):
        column = column.categorical_column
    return column


def _with_global_variables(collections: Sequence[str] | None) -> list[str] | None:
    if not collections:
        return None
    return [*collections, tf.GraphKeys.GLOBAL_VARIABLES]
