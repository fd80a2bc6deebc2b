"""The modules that programs for DeepRec import and TensorFlow 2 doesn't have.

`tensorflow.contrib` contains its parts for embedding variables, by their original paths.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec import feature_columns
from embstore.deeprec.options import EmbeddingVariableOption
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.options import CacheStrategy, GlobalStepEvict, StorageType

__all__ = ["add_modules"]


def sparse_column_with_embedding(
    column_name: str,
    dtype: Any = tf.string,
    partition_num: int | None = None,
    steps_to_live: int | None = None,
    init_data_source: Any = None,
    ht_partition_num: int = 1000,
    evconfig: Any = None,
    ev_option: Any = None,
) -> Any:
    """The older name of `categorical_column_with_embedding`.

    steps_to_live: as in GlobalStepEvict; used if the option has no evict_option.
    evconfig: the same as ev_option.
    ht_partition_num: has no effect. init_data_source: must be None.
    """
    del ht_partition_num
    if init_data_source is not None:
        raise UnsupportedError("init_data_source must be left out: rows come from checkpoints")
    if evconfig is not None and ev_option is not None:
        raise InvalidArgumentError("evconfig and ev_option are the same; give one of them")
    option = evconfig if evconfig is not None else ev_option
    if steps_to_live is not None:
        option = EmbeddingVariableOption() if option is None else option
        if option.evict_option is None:
            option = replace(option, evict_option=GlobalStepEvict(steps_to_live))
    return feature_columns.categorical_column_with_embedding(
        column_name, dtype, partition_num, option
    )


def embedding_column(sparse_id_column: Any, *arguments: Any, **options: Any) -> Any:
    """The older name of `tf.feature_column.embedding_column`."""
    return tf.feature_column.embedding_column(sparse_id_column, *arguments, **options)


def input_from_feature_columns(
    columns_to_tensors: Mapping[str, Any],
    feature_columns: Sequence[Any],
    weight_collections: Sequence[str] | None = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """The older name of `tf.feature_column.input_layer`."""
    with tf.variable_scope(scope, default_name="input_from_feature_columns"):
        return tf.feature_column.input_layer(
            columns_to_tensors, feature_columns, weight_collections, trainable
        )


def add_modules() -> ModuleType:
    """Makes the modules available to `import`, and returns `tensorflow.contrib`."""
    older = {
        "sparse_column_with_embedding": sparse_column_with_embedding,
        "embedding_column": embedding_column,
    }
    layers = {**older, "input_from_feature_columns": input_from_feature_columns}
    sequences = {
        name: getattr(feature_columns, name)
        for name in ("sequence_categorical_column_with_embedding", "sequence_input_layer")
    }
    storage = {
        "StorageType": StorageType,
        "CacheStrategy": CacheStrategy,
        "CacheType": CacheStrategy,
        # The module of a protocol buffer's enumeration has the values too.
        **StorageType.__members__,
        **CacheStrategy.__members__,
    }
    contrib = _module("tensorflow.contrib")
    _module("tensorflow.contrib.layers", layers)
    _module("tensorflow.contrib.layers.python")
    _module("tensorflow.contrib.layers.python.layers")
    _module("tensorflow.contrib.layers.python.layers.feature_column", older)
    _module(
        "tensorflow.contrib.layers.python.layers.feature_column_ops",
        {"input_from_feature_columns": input_from_feature_columns},
    )
    _module("tensorflow.contrib.feature_column", sequences)
    _module("tensorflow.core.framework.embedding")
    _module("tensorflow.core.framework.embedding.config_pb2", storage)
    return contrib


def _module(path: str, members: Mapping[str, Any] | None = None) -> ModuleType:
    module = sys.modules.get(path)
    if module is None:
        module = ModuleType(path, "What embstore.deeprec has of it.")
        module.__path__ = []  # makes it a package, so that importing a missing part raises
        sys.modules[path] = module
        above, _, name = path.rpartition(".")
        if above != "tensorflow":  # TensorFlow 2's own module, whose names `tf` gets
            setattr(sys.modules[above], name, module)
    for name, member in (members or {}).items():
        setattr(module, name, member)
    return module
