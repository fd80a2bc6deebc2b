"""In which tier look-ups find their rows, once the tiers are as full of them as they get.

A row is in one tier only, so the tiers together rank all rows, and a tier has those of its ranks.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from pmemlab.model.planning.popularity import NEVER, Floats, Popularity

__all__ = [
    "CpuCache",
    "LeastFrequent",
    "LeastRecent",
    "Placement",
    "characteristic_time",
    "look_ups_that_fill",
]


class Placement(ABC):
    """Which rows lie in which tier. tier_rows: how many in each."""

    def __init__(self, popularity: Popularity, upper_rows: Sequence[int]) -> None:
        """upper_rows: of each tier but the last, fastest first; the last one has the others."""
        self.popularity = popularity
        rows = popularity.rows
        ends = [0, *(min(int(end), rows) for end in np.cumsum(upper_rows)), rows]
        self._ends = ends
        self.tier_rows = tuple(end - begin for begin, end in itertools.pairwise(ends))

    @abstractmethod
    def total(self, tier: int, of: Callable[[Floats], Floats]) -> float:
        """The sum of `of(probability)` over rows, each as far as it's found in that tier."""

    def hit_rates(self) -> tuple[float, ...]:
        """The share of look-ups that find their row in each tier; the shares add up to 1."""
        upper = [self.total(tier, lambda p: p) for tier in range(len(self.tier_rows) - 1)]
        return (*upper, max(0.0, 1.0 - sum(upper)))


class LeastFrequent(Placement):
    """The most frequent rows in the first tier, the next in the second (LFU, with counts that have
    told all rows apart).
    """

    def total(self, tier: int, of: Callable[[Floats], Floats]) -> float:
        first, last = self._ends[tier] + 1, self._ends[tier + 1]
        return self.popularity.total(of, first, last) if last >= first else 0.0


class LeastRecent(Placement):
    """The most recent rows in the first tier, the next in the second (LRU).

    By Che's approximation (Che, Tung, Wang: Hierarchical Web Caching Systems, IEEE JSAC 20(7),
    2002; why it's so close: Fricker, Robert, Roberts, ITC 2012): a row is among the k most recent
    if it was asked for within the last T look-ups, where T is such that k rows were, on average.
    """

    def __init__(self, popularity: Popularity, upper_rows: Sequence[int]) -> None:
        """upper_rows: as of LeastFrequent."""
        super().__init__(popularity, upper_rows)
        ends = self._ends[1:-1]
        self._times = [0.0, *(characteristic_time(popularity, end) for end in ends), float("inf")]

    def total(self, tier: int, of: Callable[[Floats], Floats]) -> float:
        since, until = self._times[tier], self._times[tier + 1]
        return self.popularity.total(
            lambda p: of(p) * (_not_asked(p, since) - _not_asked(p, until))
        )


class CpuCache:
    """The CPU's last-level cache in front of a tier, taken for an LRU cache of rows."""

    def __init__(self, popularity: Popularity, cache_bytes: int, bytes_a_row: int) -> None:
        """cache_bytes: 0 for none. bytes_a_row: that a step touches of a row."""
        self._time = characteristic_time(popularity, cache_bytes // bytes_a_row)

    def missing(self, p: Floats) -> Floats:
        """The part of the look-ups of rows, asked for with probabilities p, that pass it by."""
        return _not_asked(p, self._time)


def _not_asked(p: Floats, time: float) -> Floats:
    """How likely rows, asked for with probabilities p, are asked for by none of `time` look-ups.

    time: if infinite, every row counts as asked for, even one of probability 0.
    """
    return np.zeros_like(p) if math.isinf(time) else np.asarray(np.exp(-p * time))


def characteristic_time(popularity: Popularity, cached_rows: int) -> float:
    """Look-ups that ask for so many different rows, on average; infinite where it's all."""
    if cached_rows >= popularity.rows:
        return float("inf")
    if cached_rows <= 0:
        return 0.0
    return look_ups_that_fill(popularity.different_rows, cached_rows)


def look_ups_that_fill(filled_by: Callable[[float], float], room: float) -> float:
    """Returns after how many look-ups `filled_by` of them is `room`; infinite if it never is.

    filled_by: what so many fill; it grows with them.
    """
    low, high = 0.0, 1.0
    while filled_by(high) < room:
        low, high = high, high * 4
        if high > NEVER:
            return float("inf")
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if filled_by(middle) < room else (low, middle)
    return high
