"""How often each row of a table is looked up, by a distribution or by counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pmemlab.errors import PlanError

__all__ = ["NEVER", "CountedRows", "Floats", "Popularity"]

Floats: TypeAlias = NDArray[np.float64]

NEVER = 1e30
"""A number of look-ups; a row that isn't looked up within as many is never looked up."""
_FEW_IDS_A_ROW = 10


class Popularity(ABC):
    """The popularity of rows by rank, from 1 (the most popular) to `rows`.

    text: a description. hottest_share: the share of look-ups that ask for the most popular row.
    longest_interval: the average number of look-ups between two of the least popular row, or an
    upper bound.
    """

    rows: int
    text: str
    hottest_share: float
    longest_interval: float

    @abstractmethod
    def probabilities(self, first: int, last: int) -> Floats:
        """Returns the probabilities of ranks `first` to `last`, shape (last - first + 1,)."""

    @abstractmethod
    def total(
        self, function: Callable[[Floats], Floats], first: int = 1, last: int | None = None
    ) -> float:
        """Returns the sum of `function(probability)` over the ranks `first` to `last`, by default
        all.

        function: maps probabilities, (n,), to as many values, and 0 to 0.
        """

    @abstractmethod
    def head(self, rows: int) -> Popularity:
        """Returns the popularity of the first `rows` ranks alone, scaled to all look-ups."""

    def expected_distinct_rows(self, look_ups: float) -> float:
        """Returns the average number of distinct rows in `look_ups` look-ups."""
        return self.total(lambda p: np.asarray(-np.expm1(-p * look_ups)))


class CountedRows(Popularity):
    """Popularity by counts; the table's other rows are never looked up.

    are_few: whether the counts are too small to know the popularity of many rows.
    """

    def __init__(
        self, counts: NDArray[np.int64], rows: int | None = None, description: str = "ids"
    ) -> None:
        """counts: look-ups of each row, (n,), in any order. rows: of the table, which may have more
        rows than were counted; None: it has no others. description: of the counted things.

        Raises PlanError if no row was looked up, or if `rows` is less than the counted rows.
        """
        looked_up = counts[counts > 0]
        if not looked_up.size:
            raise PlanError(f"{description}: has no ids")
        self.rows = looked_up.size if rows is None else rows
        if self.rows < looked_up.size:
            raise PlanError(
                f"{description}: has {looked_up.size} different ids, which are more than the "
                f"{rows} rows"
            )
        self._description = description
        self._ids = int(looked_up.sum())
        each, many = np.unique(looked_up, return_counts=True)
        self._p = each[::-1] / self._ids  # descending
        self._ends = np.cumsum(many[::-1])  # the last rank with that probability
        self.text = f"{self._ids:,} {description}"
        self.hottest_share = float(self._p[0])
        self.longest_interval = float(1 / self._p[-1])
        self.are_few = self._ids < _FEW_IDS_A_ROW * looked_up.size

    def probabilities(self, first: int, last: int) -> Floats:
        at = np.searchsorted(self._ends, np.arange(first, last + 1))
        return np.asarray(np.append(self._p, 0.0)[at])

    def total(
        self, function: Callable[[Floats], Floats], first: int = 1, last: int | None = None
    ) -> float:
        ends = np.minimum(self._ends, self.rows if last is None else last)
        begins = np.maximum(np.append(0, self._ends[:-1]), first - 1)
        counts = ends - begins
        (selected,) = np.nonzero(counts > 0)
        return (
            float(np.sum(function(self._p[selected]) * counts[selected])) if selected.size else 0.0
        )

    def head(self, rows: int) -> CountedRows:
        each = np.rint(self._p * self._ids).astype(np.int64)
        many = np.diff(np.minimum(np.append(0, self._ends), rows))
        return CountedRows(np.repeat(each, many), rows, self._description)
