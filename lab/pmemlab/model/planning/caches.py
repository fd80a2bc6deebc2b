"""The caches of the hardware in front of rows: the CPU's, and memory mode's DRAM cache, and how
several tables share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pmemlab.model.planning.hit_rates import (
    characteristic_time,
    lookups_to_fill,
    unvisited_probability,
)
from pmemlab.model.planning.popularity import Floats, Popularity

__all__ = ["CacheUser", "CpuCache", "SharedCache", "direct_mapped_misses"]

_MOMENTS = 400


class CpuCache:
    """The CPU's last-level cache in front of a tier, modelled as an LRU cache of rows."""

    def __init__(self, popularity: Popularity, cache_bytes: int, row_bytes: int) -> None:
        """cache_bytes: 0 for no cache. row_bytes: bytes of a row that a step touches."""
        self._time = characteristic_time(popularity, cache_bytes // row_bytes)

    def miss_rate(self, p: Floats) -> Floats:
        """Returns the share of look-ups that miss the cache, for rows of probabilities p."""
        return unvisited_probability(p, self._time)


def direct_mapped_misses(
    popularity: Popularity, row_bytes: int, cache_bytes: int, cpu_cache_bytes: int = 0
) -> float:
    """Returns the share of look-ups that find their row neither in the CPU's nor in the memory's
    cache.

    Rows lie anywhere, so any other row maps to the same line of the cache with probability q =
    row_bytes / cache_bytes. A line is still there after t look-ups if none of the rows with the
    same place was looked up meanwhile: with probability exp(-q D(t)), where D(t) is the number of
    distinct rows in t look-ups. A row of probability p is looked up again after t look-ups with
    density p exp(-p t). The sum over all rows is -D''(t), so hits are the integral of -D''(t)
    exp(-q D(t)) from T on, where T is the number of look-ups that the CPU's cache reaches back (see
    LeastRecent). Integrated by parts, and subtracted from the D'(T) look-ups that miss the CPU's
    cache: misses = D'(T) (1 - exp(-q D(T))) + q * integral of D'(t)**2 exp(-q D(t)).
    """
    q = row_bytes / cache_bytes
    begin = characteristic_time(popularity, cpu_cache_bytes // row_bytes)
    if begin == float("inf"):
        return 0.0
    # Long after even the least popular row was looked up.
    end = max(40.0 * popularity.longest_interval, 100.0 * (begin + 1.0))
    t = begin + np.concatenate([[0.0], np.geomspace(1e-3 * (1.0 + begin), end, _MOMENTS)])
    different = np.array([popularity.expected_distinct_rows(at) for at in t.tolist()])
    slope = np.array([popularity.total(_look_up_density(at)) for at in t.tolist()])
    begins = slope[0] * -np.expm1(-q * different[0])
    lost = slope**2 * np.exp(-q * different)
    return float(begins + q * np.sum((lost[1:] + lost[:-1]) / 2 * np.diff(t)))


def _look_up_density(time: float) -> Callable[[Floats], Floats]:
    """Returns one row's share of the derivative of `expected_distinct_rows`, as a function of p."""
    return lambda p: np.asarray(p * np.exp(-p * time))


@dataclass(frozen=True)
class CacheUser:
    """A table that uses the cache. share: of all look-ups. touched_bytes: of a row, in a step."""

    popularity: Popularity
    share: float
    touched_bytes: int


class SharedCache:
    """An LRU cache by Che's approximation (see `hit_rates.LeastRecent`), with one time for all
    tables: a row is in the cache if it was touched within the last T look-ups of all tables.
    """

    def __init__(self, users: Sequence[CacheUser]) -> None:
        self._users = tuple(users)
        self._known: dict[int, tuple[float, ...]] = {}

    def byte_shares(self, cache_bytes: int) -> tuple[float, ...]:
        """Returns each table's share of the cache's bytes; 1 for each table if all tables fit."""
        if cache_bytes not in self._known:
            self._known[cache_bytes] = self._divide(cache_bytes)
        return self._known[cache_bytes]

    def _divide(self, cache_bytes: int) -> tuple[float, ...]:
        everything = tuple(1.0 for _ in self._users)
        whole = sum(user.touched_bytes * user.popularity.rows for user in self._users)
        if len(self._users) == 1 or not 0 < cache_bytes < whole:
            return everything
        time = lookups_to_fill(lambda look_ups: sum(self._touched(look_ups)), cache_bytes)
        if math.isinf(time):
            return everything
        return tuple(touched / cache_bytes for touched in self._touched(time))

    def _touched(self, look_ups: float) -> list[float]:
        """Returns the bytes of each table that `look_ups` look-ups of all tables touch."""
        return [
            user.touched_bytes * user.popularity.expected_distinct_rows(look_ups * user.share)
            for user in self._users
        ]
