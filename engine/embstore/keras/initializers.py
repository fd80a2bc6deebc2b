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
        theirs = keras.initializers.get(initializer)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            f"{_MODULE} must be one of embstore.initializers, or of keras.initializers or its "
            f"name, got {initializer!r}"
        ) from None
    kinds = keras.initializers
    if isinstance(theirs, kinds.Zeros):
        return initializers.Zeros()
    if isinstance(theirs, kinds.Ones):
        return initializers.Ones()
    if isinstance(theirs, kinds.Constant):
        return initializers.Constant(theirs.value)
    if isinstance(theirs, kinds.RandomUniform):
        return initializers.RandomUniform(theirs.minval, theirs.maxval, _seed(theirs))
    if isinstance(theirs, kinds.RandomNormal):
        return initializers.RandomNormal(theirs.mean, theirs.stddev, _seed(theirs))
    if isinstance(theirs, kinds.TruncatedNormal):
        return initializers.TruncatedNormal(theirs.mean, theirs.stddev, _seed(theirs))
    if isinstance(theirs, kinds.VarianceScaling):
        return _scaled(theirs, rows, dim)
    raise UnsupportedError(
        f"{_MODULE}: {type(theirs).__name__} isn't among those that rows can start by; give "
        "one of embstore.initializers, or its own values by embstore.initializers.Constant"
    )


def _scaled(theirs: Any, rows: int, dim: int) -> Initializer:
    # Keras's own formula, for a weight matrix of (rows, dim).
    fan = {"fan_in": rows, "fan_out": dim, "fan_avg": (rows + dim) / 2}[theirs.mode]
    variance = theirs.scale / max(1.0, fan)
    if theirs.distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return initializers.RandomUniform(-limit, limit, _seed(theirs))
    if theirs.distribution == "untruncated_normal":
        return initializers.RandomNormal(0.0, math.sqrt(variance), _seed(theirs))
    # Truncation at two standard deviations reduces the standard deviation by this factor.
    stddev = math.sqrt(variance) / 0.87962566103423978
    return initializers.TruncatedNormal(0.0, stddev, _seed(theirs))


def _seed(theirs: Any) -> int:
    seed = theirs.seed  # Keras draws one if none was given; keras.utils.set_random_seed fixes it
    if not isinstance(seed, int):
        raise UnsupportedError(
            f"{_MODULE}: a SeedGenerator as seed draws anew at each call, but a key must always "
            "start alike; give an integer"
        )
    return seed % 2**32
