"""Marks whose sums show a table which of its gradients an optimizer applies.

Each gradient from a backward pass has a mark; the gradient of the rows' stand-in is the sum of the
marks. `marks_in` finds from a sum which marks are in it, each once. A sum that was scaled, averaged
or clamped, or has a mark twice, isn't a sum of different marks, and is refused.

A mark is a vector of SIZE floats, whose sums are exact:
- [0] counts marks in steps of _STEP. It is larger than any bound that gradients are clipped to, so
  that clipping, by value or by norm, changes it and is noticed. Its square is still a float32.
- [1] is the sum of the marks' check numbers, times _TINY.
- each other element has a bit for one mark of every round, times _TINY.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_MARKS", "SIZE", "count_of", "mark", "marks_in"]

Floats = NDArray[np.float32]

SIZE = 64
_STEP = 1.0625 * 2.0**50
_TINY = 2.0**-40
_BITS = 22  # of the 24 bits that float32 adds without rounding
_PLACES = SIZE - 2
MAX_MARKS = _PLACES * _BITS  # the most marks in a sum; mark(n + MAX_MARKS) is mark(n)


def mark(number: int) -> Floats:
    """Returns the mark of gradient `number`, float32 (SIZE,)."""
    number %= MAX_MARKS
    vector = np.zeros(SIZE, np.float32)
    vector[0] = _STEP
    vector[1] = _check(number) * _TINY
    vector[2 + number % _PLACES] = 2.0 ** (number // _PLACES) * _TINY
    return vector


def count_of(total: Floats) -> float:
    """Returns the number of marks in a sum. It isn't a whole number if the sum was changed."""
    return float(total[0]) / _STEP


def marks_in(total: Floats) -> list[int] | None:
    """Returns the numbers, modulo MAX_MARKS, whose marks are in the sum; None if it isn't a sum of
    different marks.
    """
    words = np.asarray(total[1:], np.float64) / _TINY
    if (words < 0).any() or (words >= 2.0**24).any() or (words != np.floor(words)).any():
        return None
    check, *sums = (int(word) for word in words)
    if any(word >= 1 << _BITS for word in sums):
        return None
    numbers = [
        bit * _PLACES + position
        for position, word in enumerate(sums)
        for bit in range(_BITS if word else 0)
        if word >> bit & 1
    ]
    if len(numbers) != count_of(total) or sum(map(_check, numbers)) != check:
        return None
    return numbers


def _check(number: int) -> int:
    # MAX_MARKS of these sum to less than 2**24.
    return zlib.crc32(number.to_bytes(4, "little")) & 0xFFF
