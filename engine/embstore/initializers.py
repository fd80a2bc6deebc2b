"""Initializers of rows; names and arguments are those of Keras.

An initializer is any callable that takes a shape (rows, dim) and returns a float32 array of that
shape. A variable calls it once, with `InitializerOption.default_value_dim` rows.

The random initializers draw from `numpy.random.RandomState(seed)`: NumPy promises that its streams
never change, unlike those of `numpy.random.Generator`, so a seed gives the same rows for good. If
an initializer has no seed, a variable derives the seed from the variable's name, so that variables
start differently, and each starts alike in every run. Outside of a variable the seed is then 0.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.errors import InvalidArgumentError
from embstore.table import checks

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "Zeros",
]

Shape = tuple[int, int]

_SEED_MAX = 2**32 - 1  # the greatest seed that RandomState takes
_MAX_VALUES = 2**45  # more than any memory holds; larger shapes raise other errors in NumPy


@runtime_checkable
class Initializer(Protocol):
    """A callable that makes rows: `(rows, dim) -> float32 array of that shape`."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Zeros:
    """Every value is 0."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return np.zeros(shape, np.float32)


@dataclass(frozen=True)
class Ones:
    """Every value is 1."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return np.ones(shape, np.float32)


@dataclass(frozen=True, eq=False)
class Constant:
    """Given values: a number, a row of shape (dim,), or a whole table of shape (rows, dim).

    A whole table needs `InitializerOption(default_value_dim=rows)`.
    """

    value: ArrayLike

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        values = checks.as_float32("Constant: value", self.value)
        rows, dim = shape
        if values.shape not in ((), (dim,), shape):
            raise InvalidArgumentError(
                f"Constant: value has the shape {values.shape}, but embedding_dim={dim} and "
                f"default_value_dim={rows} need (), ({dim},) or ({rows}, {dim})"
            )
        return np.array(np.broadcast_to(values, shape))


@dataclass(frozen=True)
class RandomUniform:
    """Uniform over [minval, maxval)."""

    minval: float = -0.05
    maxval: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        checks.real("minval", self.minval, float32=True)
        checks.real("maxval", self.maxval, at_least=self.minval, float32=True)
        _check_seed(self.seed)

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        values = _stream(self.seed).uniform(self.minval, self.maxval, shape)
        return values.astype(np.float32)


@dataclass(frozen=True)
class RandomNormal:
    """Normal with the given mean and standard deviation."""

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_normal(self.mean, self.stddev, self.seed)

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        values = _stream(self.seed).normal(self.mean, self.stddev, shape)
        return checks.as_float32("mean + a multiple of stddev", values)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal, but values further than two standard deviations from the mean are drawn again."""

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_normal(self.mean, self.stddev, self.seed)

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        values = self.mean + self.stddev * _truncated_standard_normal(shape, self.seed)
        return checks.as_float32("mean + a multiple of stddev", values)


@dataclass(frozen=True)
class _VarianceScaling:
    """Random values of variance scale / n, where n is fan_in = rows, or the mean of rows and dim.

    Formulas: Glorot & Bengio 2010, He et al. 2015, LeCun et al. 1998, as in Keras. The table of
    initial rows is taken as the weight matrix, as in DeepRec.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        _check_seed(self.seed)

    def _uniform(self, shape: Shape, variance: float) -> NDArray[np.float32]:
        limit = np.sqrt(3.0 * variance)
        return RandomUniform(-limit, limit, self.seed)(shape)

    def _normal(self, shape: Shape, variance: float) -> NDArray[np.float32]:
        # Truncation at two standard deviations multiplies the standard deviation by this factor.
        stddev = np.sqrt(variance) / 0.87962566103423978
        return TruncatedNormal(0.0, stddev, self.seed)(shape)


@dataclass(frozen=True)
class GlorotUniform(_VarianceScaling):
    """Uniform of variance 2 / (rows + dim)."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return self._uniform(shape, 2.0 / sum(shape))


@dataclass(frozen=True)
class GlorotNormal(_VarianceScaling):
    """Truncated normal of variance 2 / (rows + dim)."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return self._normal(shape, 2.0 / sum(shape))


@dataclass(frozen=True)
class HeUniform(_VarianceScaling):
    """Uniform of variance 2 / rows."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return self._uniform(shape, 2.0 / shape[0])


@dataclass(frozen=True)
class HeNormal(_VarianceScaling):
    """Truncated normal of variance 2 / rows."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return self._normal(shape, 2.0 / shape[0])


@dataclass(frozen=True)
class LecunUniform(_VarianceScaling):
    """Uniform of variance 1 / rows."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return self._uniform(shape, 1.0 / shape[0])


@dataclass(frozen=True)
class LecunNormal(_VarianceScaling):
    """Truncated normal of variance 1 / rows."""

    def __call__(self, shape: Shape, /) -> NDArray[np.float32]:
        return self._normal(shape, 1.0 / shape[0])


_RANDOM = (RandomUniform, RandomNormal, TruncatedNormal, _VarianceScaling)


def to_initializer(initializer: Initializer | type[Initializer]) -> Initializer:
    """Returns the initializer; if a class is given, an instance made without arguments.

    Raises InvalidArgumentError if `initializer` can't be used.
    """
    initializer_object: object = initializer
    if isinstance(initializer, type):
        try:
            initializer_object = initializer()
        except TypeError as error:
            raise InvalidArgumentError(
                f"initializer is the class {initializer.__name__}, which needs arguments; make "
                f"one: {initializer.__name__}(...)"
            ) from error
    if not callable(initializer_object):
        raise InvalidArgumentError(
            "initializer must be one of embstore.initializers or a callable of the shape "
            f"(rows, dim), got {type(initializer_object).__name__}; given values go into "
            "initializers.Constant(values)"
        )
    return initializer_object


def with_seed_of(name: str, initializer: Initializer) -> Initializer:
    """Returns `initializer`; if it has no seed, a copy seeded from a variable's name."""
    if isinstance(initializer, _RANDOM) and initializer.seed is None:
        return replace(initializer, seed=zlib.crc32(name.encode()))
    return initializer


def initial_rows(initializer: Initializer, shape: Shape) -> NDArray[np.float32]:
    """Returns the checked table of `initializer`: float32, C-contiguous, of `shape`."""
    try:
        if shape[0] * shape[1] > _MAX_VALUES:
            raise MemoryError
        rows = np.asarray(initializer(shape))
    except MemoryError:
        raise InvalidArgumentError(
            f"default_value_dim={shape[0]}: as many initial rows of dim {shape[1]} take "
            f"{4 * shape[0] * shape[1]} bytes of memory, more than there are; lower it (4096 is "
            "the default)"
        ) from None
    if rows.shape != shape or rows.dtype.kind not in "fiu":
        raise InvalidArgumentError(
            f"initializer must return numbers of the shape {shape}, "
            f"got {rows.dtype} of the shape {rows.shape}"
        )
    return np.ascontiguousarray(checks.as_float32("initializer: values", rows))


def _check_normal(mean: float, stddev: float, seed: int | None) -> None:
    checks.real("mean", mean, float32=True)
    checks.real("stddev", stddev, at_least=0, float32=True)
    _check_seed(seed)


def _check_seed(seed: int | None) -> None:
    if seed is not None:
        checks.integer("seed", seed, at_least=0, at_most=_SEED_MAX)


def _stream(seed: int | None) -> np.random.RandomState:
    return np.random.RandomState(0 if seed is None else seed)


def _truncated_standard_normal(shape: Shape, seed: int | None) -> NDArray[np.float64]:
    stream = _stream(seed)
    count = shape[0] * shape[1]
    accepted = np.empty(0)
    while accepted.size < count:
        # Keeps values in stream order, so that they don't depend on how many are drawn at once.
        drawn = stream.standard_normal(count)
        accepted = np.concatenate((accepted, drawn[np.abs(drawn) <= 2.0]))
    return accepted[:count].reshape(shape)
