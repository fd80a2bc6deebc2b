"""How often each row of a table is looked up, by a distribution or by counts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pmemlab.errors import PlanError

__all__ = ["NEVER", "BoundedZipf", "CountedRows", "Floats", "Popularity"]

Floats: TypeAlias = NDArray[np.float64]

NEVER = 1e30
"""A number of look-ups; a row that isn't looked up within as many is never looked up."""
_FEW_IDS_A_ROW = 10
_SUMMED_RANKS = 4096
_PANELS_A_DECADE = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


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


class BoundedZipf(Popularity):
    """Popularity by a bounded Zipf distribution.

    A look-up asks for the row of rank r, from 1 to `rows`, with probability r ** -skew / H, where H
    is the sum of r ** -skew over all ranks. `embstore.bench` draws ids from the same distribution.
    """

    def __init__(self, rows: int, skew: float) -> None:
        """rows: 1 or more. skew: 0 (all rows alike) or more."""
        if rows < 1:
            raise ValueError(f"rows must be 1 or more, not {rows}")
        if not (math.isfinite(skew) and skew >= 0):
            raise ValueError(f"skew must be 0 or more, not {skew}")
        self.rows = rows
        self.skew = skew
        self.text = f"Zipf({skew:g})"
        self._harmonic = _harmonic(rows, skew)
        self.hottest_share = 1 / self._harmonic
        with np.errstate(over="ignore"):  # with a steep skew
            self.longest_interval = min(float(np.float64(rows) ** (skew + 1)), NEVER)

    def head(self, rows: int) -> BoundedZipf:
        return BoundedZipf(rows, self.skew)

    def probabilities(self, first: int, last: int) -> Floats:
        """See `Popularity`. The result must fit into memory."""
        return np.asarray(
            np.arange(first, last + 1, dtype=np.float64) ** -self.skew / self._harmonic
        )

    def total(
        self, function: Callable[[Floats], Floats], first: int = 1, last: int | None = None
    ) -> float:
        """See `Popularity`. function: a smooth function, as it is evaluated at some ranks only.

        The first 4,096 ranks are added up. The sum over the other ranks is approximated by the
        integral from half a rank before the first to half a rank after the last: the
        Euler-Maclaurin formula in its midpoint form, whose next term is of the order of 1 /
        4,096**2 of the sum. The integral is taken over the logarithm of the rank, by Gauss-Legendre
        quadrature with 8 nodes per panel.
        """
        last = self.rows if last is None else min(last, self.rows)
        summed = min(last, _SUMMED_RANKS)
        result = (
            float(np.sum(function(self.probabilities(first, summed)))) if first <= summed else 0.0
        )
        if last > max(first - 1, summed):
            places, widths = _panels(max(first - 1, summed) + 0.5, last + 0.5)
            result += float(np.sum(function(places**-self.skew / self._harmonic) * widths))
        return result


def _harmonic(rows: int, skew: float) -> float:
    summed = min(rows, _SUMMED_RANKS)
    result = float(np.sum(np.arange(1, summed + 1, dtype=np.float64) ** -skew))
    if rows > summed:
        places, widths = _panels(summed + 0.5, rows + 0.5)
        result += float(np.sum(places**-skew * widths))
    return result


def _panels(begin: float, end: float) -> tuple[Floats, Floats]:
    """Returns quadrature nodes between `begin` and `end`, and their weights."""
    count = max(1, math.ceil(_PANELS_A_DECADE * math.log10(end / begin)))
    edges = np.linspace(math.log(begin), math.log(end), count + 1)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    places = np.exp((edges[:-1] + edges[1:])[:, None] / 2 + half * _NODES)
    return places.ravel(), (places * half * _WEIGHTS).ravel()
