"""How several tables share an LRU cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pmemlab.model.planning.hit_rates import lookups_to_fill
from pmemlab.model.planning.popularity import Popularity

__all__ = ["CacheUser", "SharedCache"]


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
