"""Ids with the skew of recommendation traffic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BoundedZipf:
    """A source of ranks 0..count-1; the probability of rank r is ∝ (r + 1) ** -exponent."""

    def __init__(self, count: int, exponent: float, seed: int) -> None:
        weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
        self._cumulative = np.cumsum(weights / weights.sum())
        self._random = np.random.default_rng(seed)

    def draw(self, size: int) -> NDArray[np.int64]:
        """Returns ranks, int64 (size,)."""
        ranks = np.searchsorted(self._cumulative, self._random.random(size))
        return np.minimum(ranks, self._cumulative.size - 1).astype(np.int64)
