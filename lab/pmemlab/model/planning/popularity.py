"""How often each row of a table is asked for: as a distribution says, or as was counted."""

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
"""Look-ups. A row that nobody asks for within so many is never asked for."""
_FEW_IDS_A_ROW = 10


class Popularity(ABC):
    """Ranks 1 to `rows`, the row that is asked for most first.

    text: for people. hottest_share: the share of look-ups that ask for the most popular row.
    longest_interval: look-ups between two of the row that is asked for least, at most; on average.
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
        self, of: Callable[[Floats], Floats], first: int = 1, last: int | None = None
    ) -> float:
        """The sum of `of(probability)` over the ranks from `first` to `last`, all by default.

        of: takes probabilities, (n,), and gives as many values; of 0 it gives 0.
        """

    @abstractmethod
    def head(self, rows: int) -> Popularity:
        """The first so many ranks alone, whose look-ups are all that there are."""

    def different_rows(self, look_ups: float) -> float:
        """Returns how many different rows so many look-ups ask for, on average."""
        return self.total(lambda p: np.asarray(-np.expm1(-p * look_ups)))


class CountedRows(Popularity):
    """Rows that were counted; others of the table were never asked for.

    are_few: whether many rows were asked for too seldom to know how popular they are.
    """

    def __init__(self, counts: NDArray[np.int64], rows: int | None = None, of: str = "ids") -> None:
        """counts: how often each row was asked for, (n,), in any order. rows: of the table, which
        may have more; None: no others. of: what was counted, for people.

        Raises PlanError where nothing was asked for, or there are fewer rows.
        """
        asked = counts[counts > 0]
        if not asked.size:
            raise PlanError(f"{of}: has no ids")
        self.rows = asked.size if rows is None else rows
        if self.rows < asked.size:
            raise PlanError(
                f"{of}: has {asked.size} different ids, which are more than the {rows} rows"
            )
        self._of = of
        self._ids = int(asked.sum())
        each, many = np.unique(asked, return_counts=True)
        self._p = each[::-1] / self._ids  # descending
        self._ends = np.cumsum(many[::-1])  # the last rank with that probability
        self.text = f"{self._ids:,} {of}"
        self.hottest_share = float(self._p[0])
        self.longest_interval = float(1 / self._p[-1])
        self.are_few = self._ids < _FEW_IDS_A_ROW * asked.size

    def probabilities(self, first: int, last: int) -> Floats:
        at = np.searchsorted(self._ends, np.arange(first, last + 1))
        return np.asarray(np.append(self._p, 0.0)[at])

    def total(
        self, of: Callable[[Floats], Floats], first: int = 1, last: int | None = None
    ) -> float:
        ends = np.minimum(self._ends, self.rows if last is None else last)
        begins = np.maximum(np.append(0, self._ends[:-1]), first - 1)
        many = ends - begins
        (some,) = np.nonzero(many > 0)
        return float(np.sum(of(self._p[some]) * many[some])) if some.size else 0.0

    def head(self, rows: int) -> CountedRows:
        each = np.rint(self._p * self._ids).astype(np.int64)
        many = np.diff(np.minimum(np.append(0, self._ends), rows))
        return CountedRows(np.repeat(each, many), rows, self._of)
