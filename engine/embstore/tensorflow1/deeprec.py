"""The names by which DeepRec's programs know what embstore has: a program for its TensorFlow runs

    import embstore.deeprec as tf
    from embstore.deeprec import config_pb2

in place of `import tensorflow as tf` and `from tensorflow.core.framework.embedding import
config_pb2`, as far as it is about embedding variables. Nothing of a model but the embedding is
here; see `embstore.torch` for that.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from embstore import initializers as _initializers
from embstore import optimizers as _optimizers
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.initializers import Initializer
from embstore.options import (
    CacheStrategy,
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    StorageOption,
    StorageType,
)
from embstore.tensorflow1 import feature_column as _columns
from embstore.tensorflow1.feature_column import SparseTensor
from embstore.tensorflow1.graph import (
    GlobalStep,
    GraphVariable,
    Initialize,
    Placeholder,
    Session,
    Trainer,
    add,
    as_tensor,
    cast,
    concat,
    embedding_lookup,
    multiply,
    reduce_mean,
    reduce_sum,
    square,
    subtract,
)
from embstore.tensorflow1.graph.training import ChangingRate, is_changing_rate

__all__ = [
    "CBFFilter",
    "ConfigProto",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "Session",
    "SparseTensor",
    "StorageOption",
    "add",
    "cast",
    "concat",
    "config_pb2",
    "constant",
    "constant_initializer",
    "device",
    "dtypes",
    "feature_column",
    "fixed_size_partitioner",
    "float32",
    "get_embedding_variable",
    "global_variables_initializer",
    "glorot_uniform_initializer",
    "int32",
    "int64",
    "multiply",
    "nn",
    "ones_initializer",
    "placeholder",
    "random_normal_initializer",
    "random_uniform_initializer",
    "reduce_mean",
    "reduce_sum",
    "square",
    "string",
    "subtract",
    "train",
    "truncated_normal_initializer",
    "zeros_initializer",
]

float32 = np.float32
int32 = np.int32
int64 = np.int64
string = np.str_
dtypes = SimpleNamespace(float32=float32, int32=int32, int64=int64, string=string)

config_pb2 = SimpleNamespace(StorageType=StorageType, CacheStrategy=CacheStrategy)

constant = as_tensor
placeholder = Placeholder
global_variables_initializer = Initialize
nn = SimpleNamespace(embedding_lookup=embedding_lookup)

feature_column = SimpleNamespace(
    categorical_column_with_embedding=_columns.categorical_column_with_embedding,
    embedding_column=_columns.embedding_column,
    input_layer=_columns.input_layer,
    sparse_column_with_embedding=_columns.sparse_column_with_embedding,
)


@contextlib.contextmanager
def device(name: str) -> Iterator[None]:
    """Does nothing for the CPU; raises UnsupportedError for what is elsewhere."""
    if "cpu" not in name.lower():
        raise UnsupportedError(f"device {name!r}: variables live on the CPU in this version")
    yield


def ConfigProto(**options: Any) -> dict[str, Any]:  # noqa: N802
    """Options of TensorFlow's runtime, none of which has anything to act on here."""
    return options


def fixed_size_partitioner(num_shards: int) -> int:
    return num_shards


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: DTypeLike = int64,
    value_dtype: DTypeLike = float32,
    initializer: Initializer | None = None,
    partitioner: int | None = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> GraphVariable:
    """See `embstore.get_embedding_variable`."""
    if np.dtype(key_dtype) != np.int64 or np.dtype(value_dtype) != np.float32:
        raise InvalidArgumentError(
            "key_dtype must be int64 and value_dtype float32, "
            f"got {np.dtype(key_dtype)} and {np.dtype(value_dtype)}"
        )
    return GraphVariable(
        name,
        embedding_dim,
        initializer=initializer,
        ev_option=ev_option,
        partition_num=1 if partitioner is None else partitioner,
    )


# --- Initializers: values are float32 whatever the dtype that is asked for.


def _initializer(make: Callable[..., Initializer]) -> Callable[..., Initializer]:
    def initializer(*arguments: Any, dtype: DTypeLike = float32, **options: Any) -> Initializer:
        if np.dtype(dtype) != np.float32:
            raise InvalidArgumentError(f"dtype must be float32, got {np.dtype(dtype)}")
        given = {name: option for name, option in options.items() if option is not None}
        return make(*arguments, **given)

    return initializer


def ones_initializer(dtype: DTypeLike = float32) -> Initializer:
    return _initializer(_initializers.Ones)(dtype=dtype)


def zeros_initializer(dtype: DTypeLike = float32) -> Initializer:
    return _initializer(_initializers.Zeros)(dtype=dtype)


constant_initializer = _initializer(_initializers.Constant)
random_uniform_initializer = _initializer(_initializers.RandomUniform)
random_normal_initializer = _initializer(_initializers.RandomNormal)
truncated_normal_initializer = _initializer(_initializers.TruncatedNormal)
glorot_uniform_initializer = _initializer(_initializers.GlorotUniform)


# --- Optimizers. A learning rate may be a tensor, a placeholder for one, or a callable without
# arguments, as in TensorFlow.

_REPLACED_RATE = 1.0  # of an optimizer before its first run: any that is legal for all of them


def _optimizer(rule: type[_optimizers.Optimizer]) -> Callable[..., Trainer]:
    def optimizer(
        *arguments: Any,
        use_locking: bool = False,  # noqa: ARG001
        name: str | None = None,  # noqa: ARG001
        **options: Any,
    ) -> Trainer:
        given = inspect.signature(rule).bind(*arguments, **options).arguments
        rate = given.get("learning_rate")
        if is_changing_rate(rate):
            return Trainer(rule(**{**given, "learning_rate": _REPLACED_RATE}), learning_rate=rate)
        return Trainer(rule(**given))

    return optimizer


def _counted_optimizer(rule: type[_optimizers.Optimizer]) -> Callable[..., Trainer]:
    """Of those that TensorFlow hands the global step, which the rows' own steps stand for here."""
    make = _optimizer(rule)

    def optimizer(
        learning_rate: float | ChangingRate,
        global_step: object = None,  # noqa: ARG001
        **options: Any,
    ) -> Trainer:
        return make(learning_rate, **options)

    return optimizer


train = SimpleNamespace(
    AdadeltaOptimizer=_optimizer(_optimizers.Adadelta),
    AdagradDecayOptimizer=_counted_optimizer(_optimizers.AdagradDecay),
    AdagradDecayOptimizerV2=_counted_optimizer(_optimizers.AdagradDecayV2),
    AdagradOptimizer=_optimizer(_optimizers.Adagrad),
    AdamAsyncOptimizer=_optimizer(_optimizers.AdamAsync),
    AdamOptimizer=_optimizer(_optimizers.Adam),
    AdamWOptimizer=_optimizer(_optimizers.AdamW),
    FtrlOptimizer=_optimizer(_optimizers.Ftrl),
    GradientDescentOptimizer=_optimizer(_optimizers.SGD),
    get_or_create_global_step=GlobalStep,
)
