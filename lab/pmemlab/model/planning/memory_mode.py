"""Misses of a direct-mapped memory cache, behind the CPU's own cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmemlab.model.planning.hit_rates import characteristic_time
from pmemlab.model.planning.popularity import Floats, Popularity

__all__ = ["direct_mapped_misses"]

_MOMENTS = 400


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
