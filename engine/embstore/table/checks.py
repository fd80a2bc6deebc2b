"""Checks of arguments; each error names the argument, what was got and what to do."""

from __future__ import annotations

import math
import numbers
import os
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.ma import MaskedArray  # imported early, since the first use may be in a forked child
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import InvalidArgumentError, StorageError

Ids: TypeAlias = "NDArray[np.int64] | Sequence[int] | Sequence[Sequence[int]] | int"
Rows: TypeAlias = "NDArray[np.float32] | Sequence[float] | Sequence[Sequence[float]]"

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
FLOAT32_TINY = float(np.finfo(np.float32).tiny)  # the smallest normal number; 1 / tiny is finite
_FINITE_FLOAT32 = f"at most {np.finfo(np.float32).max:g} in size, the largest float32"
MAX_NAME_BYTES = 1000  # of a variable; headers of files keep it with the partition's number


def integer(
    name: str, value: object, *, at_least: int, at_most: int = INT64_MAX, unit: str = ""
) -> int:
    """Returns `value` as an int within [at_least, at_most]; takes numpy integers, but no bools."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise InvalidArgumentError(
            f"{name} must be an integer{unit and f' ({unit})'}, "
            f"got {value!r} ({type(value).__name__})"
        )
    if not at_least <= int(value) <= at_most:
        limit = f"at least {at_least}" if int(value) < at_least else f"at most {at_most}"
        raise InvalidArgumentError(
            f"{name} must be {limit}{unit and f' {unit}'}, got {_digits(value)}"
        )
    return int(value)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(name: str, value: object, *, at_least: int = 1, at_most: int = INT64_MAX) -> int:
    """Returns the bytes of a size such as 4096, "4096", "512M" or "4G" (binary units), within
    [at_least, at_most].
    """
    if isinstance(value, str):
        found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", value)
        if found is None:
            raise InvalidArgumentError(
                f"{name} must be bytes, or a number with K, M, G or T, such as '512M', "
                f"got {value!r}"
            )
        value = int(found[1]) * _UNITS[found[2]]
    return integer(name, value, at_least=at_least, at_most=at_most, unit="bytes")


def is_utf8(text: str) -> bool:
    """Returns whether the core takes `text`: UTF-8 lacks lone surrogates, which a str may hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def directory(name: str, value: object) -> str:
    """Returns the path `value` as a str that can name a directory."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not text or not isinstance(text, str):
        raise InvalidArgumentError(f"{name} must name a directory, got {value!r}")
    if "\0" in text or not is_utf8(text):
        raise InvalidArgumentError(
            f"{name} must be text that UTF-8 has, without NUL and lone surrogates, got {value!r}"
        )
    return text


def variable_name(value: object) -> str:
    """Returns `value` as the name of a variable, which files of every storage type can store."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidArgumentError(
            f"name must be a string that isn't empty, without NUL, got {value!r}"
        )
    if not is_utf8(value):
        raise InvalidArgumentError(
            f"name must be text that UTF-8 has, without lone surrogates, got {value!r}"
        )
    byte_count = len(value.encode())
    if byte_count > MAX_NAME_BYTES:
        raise InvalidArgumentError(
            f"name must be at most {MAX_NAME_BYTES} bytes of UTF-8, got {byte_count}; shorten it"
        )
    return value


def parts(partition_num: object, shards: object) -> tuple[int, int | None]:
    """Returns both arguments of `embstore.get_embedding_variable`, checked together."""
    count = integer("partition_num", partition_num, at_least=1)
    if shards is None:
        return count, None
    if count != 1:
        raise InvalidArgumentError(
            f"partition_num must be left at 1 where shards is given, got {count}: each shard is "
            "one partition"
        )
    return count, integer("shards", shards, at_least=1)


def flag(name: str, value: object) -> bool:
    """Returns `value` as a bool; takes numpy bools, but no numbers."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgumentError(
            f"{name} must be True or False, got {value!r} ({type(value).__name__})"
        )
    return bool(value)


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Returns `value`, which must be one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def real(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
    float32: bool = False,
) -> float:
    """Returns `value` as a finite float within the given bounds.

    float32: the value will be used as float32, so the nearest float32 must be finite and within the
        bounds, too. The result isn't rounded.
    """
    number = _finite(name, value)
    _check_bounds(name, number, number, above, at_least, below, at_most)
    if float32:
        rounded = _rounded(name, number)
        bounds = (_nearest_float32(bound) for bound in (above, at_least, below, at_most))
        _check_bounds(name, number, rounded, *bounds)
    return number


def _check_bounds(
    name: str,
    number: float,
    used: float,
    above: float,
    at_least: float,
    below: float,
    at_most: float,
) -> None:
    """Raises InvalidArgumentError if `used`, which is `number` or its float32, is out of bounds."""
    for holds, bound in (
        (used > above, f"greater than {above:g}"),
        (used >= at_least, f"at least {at_least:g}"),
        (used < below, f"less than {below:g}"),
        (used <= at_most, f"at most {at_most:g}"),
    ):
        if not holds:
            raise InvalidArgumentError(
                f"{name} must be {bound}, got {number:g}"
                if used == number
                else f"{name} must be {bound} as float32, got {number!r}, which is {used:g} "
                "there; give a number further from the bound"
            )


def _finite(name: str, value: object) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise InvalidArgumentError(
            f"{name} must be a number, got {value!r} ({type(value).__name__})"
        )
    try:
        number = float(value)
    except OverflowError:
        raise InvalidArgumentError(
            f"{name} must be a number that a float has, at most {sys.float_info.max:g} in size, "
            f"got {_digits(value)}"
        ) from None
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{name} must be finite, got {number}")
    return number


def _rounded(name: str, number: float) -> float:
    """Returns the nearest float32. Raises InvalidArgumentError if it is infinite."""
    rounded = _nearest_float32(number)
    if math.isinf(rounded):
        raise InvalidArgumentError(f"{name} must be {_FINITE_FLOAT32}, got {number:g}")
    return rounded


def _nearest_float32(number: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(number))


def _digits(number: object) -> str:
    """Returns `number` for a message, shortened; str() of thousands of digits raises ValueError."""
    try:
        text = str(number)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 50 else f"{text[:20]}... ({len(text)} characters)"


def plain_array(name: str, value: object) -> NDArray[Any]:
    """Returns `value` as an array. Refuses masked arrays, whose mask NumPy would ignore."""
    if isinstance(value, MaskedArray) or _has_masked(value):
        raise InvalidArgumentError(
            f"{name} must be a plain array, got a masked one, whose mask would be ignored; choose "
            f"what counts, for example {name}.compressed(), or {name}.filled(0) for the same shape"
        )
    try:
        return np.asarray(value)
    except ValueError:
        raise InvalidArgumentError(f"{name} must be a regular array, got a ragged one") from None
    except (TypeError, RuntimeError) as error:  # for example sparse or nested PyTorch tensors
        kind = type(value)
        raise InvalidArgumentError(
            f"{name} must be an array, got a {kind.__module__}.{kind.__name__} that NumPy can't "
            f"read: {error}"
        ) from error


def is_iterable(value: object) -> bool:
    """Returns whether iter() takes `value`, which only trying tells for an array without
    dimensions.
    """
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _has_masked(value: object) -> bool:
    """Returns whether `value` is a list of arrays with a masked one, whose mask NumPy ignores."""
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], np.ndarray):
        return False
    return any(isinstance(entry, MaskedArray) for entry in value)


def ids(value: object) -> NDArray[np.int64]:
    """Returns `value` as a C-contiguous int64 array of its own shape.

    Converts arrays of shorter integers and Python lists of ints. Refuses float and uint64 ids,
    since a silent cast could turn one key into another.
    """
    # The usual case. Everything below takes longer than the look-up of one id.
    if type(value) is np.ndarray and value.dtype == INT64 and value.flags.c_contiguous:
        return value
    array = plain_array("ids", value)
    if array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64):
        array = array.astype(np.int64, copy=False)
    if array.dtype != np.int64:
        if array.size == 0 and isinstance(value, (list, tuple)):
            return np.zeros(array.shape, np.int64)
        raise InvalidArgumentError(
            f"ids must be int64, got {array.dtype}; "
            "convert them first, for example ids.astype(numpy.int64)"
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def rows(name: str, value: object, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns `value` as a C-contiguous float32 array of `shape`; converts lists of numbers."""
    if (  # the usual case
        type(value) is np.ndarray
        and value.dtype == FLOAT32
        and value.shape == shape
        and value.flags.c_contiguous
    ):
        return value
    array = plain_array(name, value)
    _check_numbers(name, array)
    if isinstance(value, (list, tuple)):
        array = as_float32(name, array)
    if array.dtype != np.float32:
        raise InvalidArgumentError(
            f"{name} must be float32, got {array.dtype}; "
            f"convert them first, for example {name}.astype(numpy.float32)"
        )
    if array.shape != shape:
        raise InvalidArgumentError(
            f"{name} must have the shape ids.shape + (dim,) = {shape}, got {array.shape}"
        )
    return np.ascontiguousarray(array)


def as_float32(name: str, value: object) -> NDArray[np.float32]:
    """Returns an array, or lists, of real numbers as float32; a new array if it was converted.

    Raises InvalidArgumentError for complex numbers and text, and for a finite number that would
    become infinite.
    """
    array = plain_array(name, value)
    _check_numbers(name, array)
    try:
        with np.errstate(all="ignore"):
            values = array.astype(np.float32, copy=False)
    except OverflowError:  # an integer beyond the range of floats
        too_large = True
    else:
        wide = array.dtype != FLOAT32
        too_large = wide and bool(np.isinf(values).any() and _gained_infinity(array, values))
    if too_large:
        raise InvalidArgumentError(
            f"{name} must be {_FINITE_FLOAT32}, got numbers beyond; scale or clip them first"
        )
    return values


def _check_numbers(name: str, array: NDArray[Any]) -> None:
    """Raises InvalidArgumentError for complex numbers, text and other values that aren't real."""
    kind = array.dtype.kind
    if kind == "O":
        are_numbers = all(isinstance(entry, (numbers.Real, Decimal)) for entry in array.flat)
    else:  # can_cast: for kinds that aren't NumPy's own, such as bfloat16
        are_numbers = kind in "biuf" or np.can_cast(array.dtype, FLOAT32)
    if not are_numbers:
        raise InvalidArgumentError(
            f"{name} must be numbers, got {array.dtype}; give integers or floats"
        )


def _gained_infinity(before: NDArray[Any], after: NDArray[np.float32]) -> bool:
    """Returns whether a finite number of `before` is infinite in `after`."""
    return any(math.isfinite(number) for number in before[np.isinf(after)].tolist())


def counts(name: str, value: object, shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Returns `value`, integers from 1 to 2**32 - 1, as a uint32 array of `shape`."""
    array = plain_array(name, value)
    if array.dtype.kind not in "iu" or array.shape != shape:
        raise InvalidArgumentError(
            f"{name} must be integers of the shape {shape}, got {array.dtype} of {array.shape}"
        )
    if array.size and not 1 <= int(array.min()) <= int(array.max()) < 2**32:
        raise InvalidArgumentError(f"{name} must be from 1 to {2**32 - 1}")
    return array.astype(np.uint32)


def distinct(name: str, keys: NDArray[np.int64]) -> None:
    """Raises InvalidArgumentError if `keys` (n,) has a key twice."""
    ascending = np.sort(keys)
    again = ascending[1:][ascending[1:] == ascending[:-1]]
    if again.size:
        raise InvalidArgumentError(f"{name}: {again[0]} is there more than once")


class NotFiniteError(InvalidArgumentError):
    """A gradient is NaN or infinite."""


def finite_gradients(ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Raises NotFiniteError if a value (n, dim) for the ids (n,) is NaN or infinite.

    Sums of finite gradients may overflow, so callers check gradients before they sum them.
    """
    first = _core.first_not_finite(values)
    if first is not None:
        raise not_finite(ids, values, first)


def not_finite(ids: NDArray[np.int64], values: NDArray[np.float32], first: int) -> NotFiniteError:
    """Returns the error for values (n, dim) of the ids (n,). first: the bad value's flat index."""
    at, column = divmod(first, values.shape[1])
    return NotFiniteError(
        f"grads must be finite, since a row never recovers: that of ids[{at}], key {ids[at]}, has "
        f"{values[at, column]} in column {column}; leave the batch out, or lower the learning rate"
    )


def out(
    array: NDArray[np.float32], shape: tuple[int, ...], keys: NDArray[np.int64] | None = None
) -> None:
    """Raises InvalidArgumentError if rows of `shape` can't be written into `array`.

    keys: C-contiguous; must not share memory with `array`, as they are read while rows are written.
        None: the core checks that.
    """
    if isinstance(array, MaskedArray):
        raise InvalidArgumentError(
            "out must be a plain array, got a masked one, whose mask would stay; give out.data"
        )
    if not isinstance(array, np.ndarray) or array.dtype != FLOAT32 or array.shape != shape:
        got = (
            f"{array.dtype} of {array.shape}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        raise InvalidArgumentError(f"out must be a float32 array of {shape}, got {got}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise InvalidArgumentError("out must be C-contiguous and writeable")
    if keys is not None and np.may_share_memory(array, keys):  # exact for contiguous arrays
        raise InvalidArgumentError("out must not share memory with ids; give a copy of one of them")


def absolute(name: str, path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path. Raises StorageError for a relative path if there is no working
    directory any more.
    """
    try:
        return Path(path).absolute()
    except OSError as error:
        raise StorageError(
            f"{name}: {path} is relative, and there is no working directory any more "
            f"({error.strerror}); give an absolute path"
        ) from error
