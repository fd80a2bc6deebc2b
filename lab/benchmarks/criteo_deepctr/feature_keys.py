"""The keys of features' ids in a table that all features share."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pmemlab.workloads.batches import CATEGORICAL_COLUMNS
from pmemlab.workloads.hashing import splitmix64

__all__ = ["feature_keys"]

_OF_FEATURES: Final = splitmix64(0, np.arange(len(CATEGORICAL_COLUMNS)))


def feature_keys(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys of ids, both int64 (n, 26).

    Within a feature no two ids share a key. Ids of two features share a key only if they differ by
    the XOR of two fixed 64-bit numbers: ids between ±2^56 never do, and among n ids that are spread
    over all int64 about n² / 2^65 pairs do.
    """
    marked = ids ^ _OF_FEATURES.view(np.int64)
    # A table's partition is the key modulo the number of partitions, so keys must be mixed.
    return splitmix64(0, marked).view(np.int64)
