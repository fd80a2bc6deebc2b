"""The tier in which look-ups find their rows, in steady state.

A row is in one tier only, so the tiers together rank all rows, and each tier has a range of ranks.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from pmemlab.model.planning.popularity import NEVER, Floats, Popularity

__all__ = [
    "LeastFrequent",
    "LeastRecent",
    "Placement",
    "characteristic_time",
    "lookups_to_fill",
    "unvisited_probability",
]


class Placement(ABC):
    """An assignment of rows to tiers. tier_rows: the number of rows in each tier."""

    def __init__(self, popularity: Popularity, upper_rows: Sequence[int]) -> None:
        """upper_rows: rows of each tier but the last, fastest first; the last has the others."""
        self.popularity = popularity
        rows = popularity.rows
        ends = [0, *(min(int(end), rows) for end in np.cumsum(upper_rows)), rows]
        self._ends = ends
        self.tier_rows = tuple(end - begin for begin, end in itertools.pairwise(ends))

    @abstractmethod
    def total(self, tier: int, function: Callable[[Floats], Floats]) -> float:
        """Returns the sum of `function(probability)` over rows, weighted by the chance that a row
        is in the tier.
        """

    def hit_rates(self) -> tuple[float, ...]:
        """Returns the share of look-ups that find their row in each tier; the shares add up
        to 1.
        """
        upper = [self.total(tier, lambda p: p) for tier in range(len(self.tier_rows) - 1)]
        return (*upper, max(0.0, 1.0 - sum(upper)))


class LeastFrequent(Placement):
    """LFU: the most frequent rows in the first tier, the next in the second, with frequencies that
    rank all rows.
    """

    def total(self, tier: int, function: Callable[[Floats], Floats]) -> float:
        first, last = self._ends[tier] + 1, self._ends[tier + 1]
        return self.popularity.total(function, first, last) if last >= first else 0.0


class LeastRecent(Placement):
    """LRU: the most recently used rows in the first tier, the next in the second.

    Uses Che's approximation (Che, Tung, Wang: Hierarchical Web Caching Systems, IEEE JSAC 20(7),
    2002; why it is so close: Fricker, Robert, Roberts, ITC 2012): a row is among the k most recent
    if it was looked up within the last T look-ups, where T look-ups ask for k distinct rows on
    average.
    """

    def __init__(self, popularity: Popularity, upper_rows: Sequence[int]) -> None:
        """upper_rows: as in LeastFrequent."""
        super().__init__(popularity, upper_rows)
        ends = self._ends[1:-1]
        self._times = [0.0, *(characteristic_time(popularity, end) for end in ends), float("inf")]

    def total(self, tier: int, function: Callable[[Floats], Floats]) -> float:
        since, until = self._times[tier], self._times[tier + 1]
        return self.popularity.total(
            lambda p: (
                function(p) * (unvisited_probability(p, since) - unvisited_probability(p, until))
            )
        )


def unvisited_probability(p: Floats, time: float) -> Floats:
    """Returns the chance that none of `time` look-ups asks for a row, for rows of probabilities p.

    With infinite `time` every row counts as looked up, even a row of probability 0.
    """
    return np.zeros_like(p) if math.isinf(time) else np.asarray(np.exp(-p * time))


def characteristic_time(popularity: Popularity, cached_rows: int) -> float:
    """Returns the look-ups that ask for `cached_rows` distinct rows on average; infinite for all
    rows.
    """
    if cached_rows >= popularity.rows:
        return float("inf")
    if cached_rows <= 0:
        return 0.0
    return lookups_to_fill(popularity.expected_distinct_rows, cached_rows)


def lookups_to_fill(filled: Callable[[float], float], capacity: float) -> float:
    """Returns the number of look-ups at which `filled` reaches `capacity`; infinite if it never
    does.

    filled: the room that a number of look-ups fills; grows with the number.
    """
    low, high = 0.0, 1.0
    while filled(high) < capacity:
        low, high = high, high * 4
        if high > NEVER:
            return float("inf")
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if filled(middle) < capacity else (low, middle)
    return high
