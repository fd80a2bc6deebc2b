"""Two published 64-bit functions, exact and in batches.

FNV-1a turns a category's string into its key. It is chosen because it is published with test
vectors (RFC 9923), needs no library, and works column-wise on short strings: one multiplication a
byte for a whole batch. Its weak avalanche does no harm here, since the engine mixes keys again for
its index.

SplitMix64 turns small numbers into keys spread over all of int64. Its finalizer is a bijection, so
that two different numbers never share a key. Source: Steele, Lea and Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014; constants of Vigna's splitmix64.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FNV_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def fnv1a_64(strings: Sequence[bytes]) -> NDArray[np.int64]:
    """Hash n byte strings with FNV-1a, 64 bits (RFC 9923); returns int64 (n,).

    The bits are those of the published unsigned hash, read as two's complement. The empty string
    has the offset basis, so a missing value is a category of its own.
    """
    hashes = np.full(len(strings), _FNV_OFFSET_BASIS, dtype=np.uint64)
    lengths = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
    width = int(lengths.max(initial=0))
    if width:
        padded = b"".join(string.ljust(width, b"\0") for string in strings)
        columns = np.frombuffer(padded, dtype=np.uint8).reshape(len(strings), width)
        for position in range(width):
            hashed = (hashes ^ columns[:, position]) * _FNV_PRIME
            hashes = np.where(position < lengths, hashed, hashes)
    return hashes.view(np.int64)


def splitmix64(seed: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return output number `index` (from 0) of SplitMix64 seeded with `seed`, for each index.

    `indices` is int64 of any shape; the result is uint64 of that shape. For one seed, different
    indices give different outputs.
    """
    steps = indices.astype(np.uint64) + np.uint64(1)
    state = steps * np.uint64(_GOLDEN_GAMMA) + np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF)
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
