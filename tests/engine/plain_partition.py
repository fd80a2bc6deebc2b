"""The partition of a key, computed as engine/FORMAT.md describes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BITS = (1 << 64) - 1


def partition_hash(key: int) -> int:
    """Returns SplitMix64's first output from the state `key`."""
    h = (key + 0x9E3779B97F4A7C15) & BITS
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & BITS
    return h ^ (h >> 31)


def partition_of(key: int, partitions: int) -> int:
    return partition_hash(key) * partitions >> 64


def partitions_of(keys: Iterable[int], partitions: int) -> NDArray[np.int64]:
    return np.array([partition_of(int(key), partitions) for key in keys], np.int64)


def keys_of_each(partitions: int, count: int) -> NDArray[np.int64]:
    """Returns the first `count` keys from 0 of each partition, in ascending order."""
    keys = np.arange(count * partitions * 4 + 64 * partitions)
    where = partitions_of(keys, partitions)
    chosen = [keys[where == partition][:count] for partition in range(partitions)]
    assert all(part.size == count for part in chosen)
    return np.sort(np.concatenate(chosen))
