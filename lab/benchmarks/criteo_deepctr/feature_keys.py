"""One table for all features: what a feature's id is known by in it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pmemlab.workloads.batches import CATEGORICAL_COLUMNS
from pmemlab.workloads.hashing import splitmix64

__all__ = ["feature_keys"]

_OF_FEATURES: Final = splitmix64(0, np.arange(len(CATEGORICAL_COLUMNS)))


def feature_keys(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keys of ids, int64 (n, 26) both.

    Within a feature no two ids share a key. Two features share one only where their ids differ by
    the XOR of two fixed 64-bit numbers: ids between ±2^56 never do, and of n ids that are spread
    over all int64 about n² / 2^65 pairs.
    """
    marked = ids ^ _OF_FEATURES.view(np.int64)
    # A table's partition is the key modulo their number, so that keys must be mixed.
    return splitmix64(0, marked).view(np.int64)
