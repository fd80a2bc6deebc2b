"""How several tables share a cache that keeps what was touched last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pmemlab.model.planning.popularity import Popularity
from pmemlab.model.planning.zipf import Floats

__all__ = ["CacheUser", "SharedCache"]

_NEVER = 1e30


@dataclass(frozen=True)
class CacheUser:
    """A table. share: of all look-ups. touched_bytes: of a row, in a step."""

    popularity: Popularity
    share: float
    touched_bytes: int


class SharedCache:
    """By Che's approximation (see `hit_rates.LeastRecent`), with one time for all tables: a row is
    in the cache if it was touched within the last T look-ups, of whatever table.
    """

    def __init__(self, users: Sequence[CacheUser]) -> None:
        self._users = tuple(users)
        self._known: dict[int, tuple[float, ...]] = {}

    def parts(self, cache_bytes: int) -> tuple[float, ...]:
        """The part of so many bytes that each table has; 1 for all where all of them fit."""
        if cache_bytes not in self._known:
            self._known[cache_bytes] = self._divided(cache_bytes)
        return self._known[cache_bytes]

    def _divided(self, cache_bytes: int) -> tuple[float, ...]:
        everything = tuple(1.0 for _ in self._users)
        whole = sum(user.touched_bytes * user.popularity.rows for user in self._users)
        if len(self._users) == 1 or not 0 < cache_bytes < whole:
            return everything
        low, high = 0.0, 1.0
        while sum(self._held(high)) < cache_bytes:
            low, high = high, high * 4
            if high > _NEVER:  # rows that nobody ever asks for
                return everything
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if sum(self._held(middle)) < cache_bytes else (low, middle)
        return tuple(held / cache_bytes for held in self._held(high))

    def _held(self, time: float) -> list[float]:
        """Bytes of each table that are touched within so many look-ups."""
        held = []
        for user in self._users:
            asked = time * user.share

            def touched(p: Floats, asked: float = asked) -> Floats:
                return np.asarray(-np.expm1(-p * asked))

            held.append(user.touched_bytes * user.popularity.total(touched))
        return held
