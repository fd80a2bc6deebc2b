"""What a direct-mapped cache of memory has of the rows that the CPU's own cache has not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmemlab.model.planning.hit_rates import characteristic_time
from pmemlab.model.planning.popularity import Floats, Popularity

__all__ = ["direct_mapped_misses"]

_MOMENTS = 400


def direct_mapped_misses(
    popularity: Popularity, bytes_a_row: int, cache_bytes: int, cpu_cache_bytes: int = 0
) -> float:
    """Look-ups, of all, that find their row neither in the CPU's cache nor in the memory's.

    Rows lie anywhere, so each other row shares a line's place in the cache with probability
    q = bytes_a_row / cache_bytes. A line is there still after t look-ups if none of those rows was
    asked for meanwhile: exp(-q D(t)), where D(t) is how many different rows t look-ups ask for. A
    row of probability p is asked for again after t look-ups with density p exp(-p t). Over all rows
    that's -D''(t), so hits are the integral of -D''(t) exp(-q D(t)) from T on, the look-ups that
    the CPU's cache reaches back (see LeastRecent). By parts, and taken from the D'(T) look-ups that
    pass that cache: misses = D'(T) (1 - exp(-q D(T))) + q * integral of D'(t)**2 exp(-q D(t)).
    """
    q = bytes_a_row / cache_bytes
    begin = characteristic_time(popularity, cpu_cache_bytes // bytes_a_row)
    if begin == float("inf"):
        return 0.0
    # Long after the row that is asked for least was.
    end = max(40.0 * popularity.longest_interval, 100.0 * (begin + 1.0))
    t = begin + np.concatenate([[0.0], np.geomspace(1e-3 * (1.0 + begin), end, _MOMENTS)])
    different = np.array([popularity.different_rows(at) for at in t.tolist()])
    slope = np.array([popularity.total(_asked_for_now(at)) for at in t.tolist()])
    begins = slope[0] * -np.expm1(-q * different[0])
    lost = slope**2 * np.exp(-q * different)
    return float(begins + q * np.sum((lost[1:] + lost[:-1]) / 2 * np.diff(t)))


def _asked_for_now(time: float) -> Callable[[Floats], Floats]:
    """The derivative of `different_rows`, of one row."""
    return lambda p: np.asarray(p * np.exp(-p * time))
