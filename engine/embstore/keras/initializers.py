"""Converts Keras's initializers to embstore's, with the same distribution and seed.

The values differ, since Keras draws from its backend's generator.
"""

from __future__ import annotations

import math
from typing import Any

import keras

from embstore import initializers
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.initializers import Initializer

__all__ = ["initializer_from_keras"]

_MODULE = "embeddings_initializer"


def initializer_from_keras(initializer: Any, rows: int, dim: int) -> Initializer:
    """Returns embstore's initializer for a Keras one or a Keras name; one of embstore's is returned
    as it is. None stands for "glorot_uniform", which Keras uses for weights without an initializer.

    rows: number of rows of the table, which variance-scaling initializers count as fan-in.
    """
    if initializer is None:
        initializer = "glorot_uniform"
    if type(initializer).__module__ == initializers.__name__:
        chosen: Initializer = initializer
        return chosen
    try:
        keras_initializer = keras.initializers.get(initializer)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            f"{_MODULE} must be one of embstore.initializers, or of keras.initializers or its "
            f"name, got {initializer!r}"
        ) from None
    kinds = keras.initializers
    if isinstance(keras_initializer, kinds.Zeros):
        return initializers.Zeros()
    if isinstance(keras_initializer, kinds.Ones):
        return initializers.Ones()
    if isinstance(keras_initializer, kinds.Constant):
        return initializers.Constant(keras_initializer.value)
    if isinstance(keras_initializer, kinds.RandomUniform):
        return initializers.RandomUniform(
            keras_initializer.minval, keras_initializer.maxval, _seed(keras_initializer)
        )
    if isinstance(keras_initializer, kinds.RandomNormal):
        return initializers.RandomNormal(
            keras_initializer.mean, keras_initializer.stddev, _seed(keras_initializer)
        )
    if isinstance(keras_initializer, kinds.TruncatedNormal):
        return initializers.TruncatedNormal(
            keras_initializer.mean, keras_initializer.stddev, _seed(keras_initializer)
        )
    if isinstance(keras_initializer, kinds.VarianceScaling):
        return _variance_scaling(keras_initializer, rows, dim)
    raise UnsupportedError(
        f"{_MODULE}: {type(keras_initializer).__name__} isn't among those that rows can start by; "
        "give one of embstore.initializers, or its own values by embstore.initializers.Constant"
    )


def _variance_scaling(keras_initializer: Any, rows: int, dim: int) -> Initializer:
    # Keras's own formula, for a weight matrix of (rows, dim).
    fan = {"fan_in": rows, "fan_out": dim, "fan_avg": (rows + dim) / 2}[keras_initializer.mode]
    variance = keras_initializer.scale / max(1.0, fan)
    if keras_initializer.distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return initializers.RandomUniform(-limit, limit, _seed(keras_initializer))
    if keras_initializer.distribution == "untruncated_normal":
        return initializers.RandomNormal(0.0, math.sqrt(variance), _seed(keras_initializer))
    # Truncation at two standard deviations reduces the standard deviation by this factor.
    stddev = math.sqrt(variance) / 0.87962566103423978
    return initializers.TruncatedNormal(0.0, stddev, _seed(keras_initializer))


def _seed(keras_initializer: Any) -> int:
    seed = (
        keras_initializer.seed
    )  # Keras draws one if none was given; keras.utils.set_random_seed fixes it
    if not isinstance(seed, int):
        raise UnsupportedError(
            f"{_MODULE}: a SeedGenerator as seed draws anew at each call, but a key must always "
            "start alike; give an integer"
        )
    return seed % 2**32
