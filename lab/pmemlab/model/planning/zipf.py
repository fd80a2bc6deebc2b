"""Sums over the rows of a table that are asked for with a bounded Zipf's skew: a `Popularity`.

A look-up is of the row of rank r, from 1 to `rows`, with probability r ** -skew / H, where H is the
sum of r ** -skew over all ranks: what `embstore.bench` draws too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoundedZipf", "Floats"]

Floats: TypeAlias = NDArray[np.float64]

_SUMMED_RANKS = 4096
_PANELS_A_DECADE = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


class BoundedZipf:
    """Ranks 1 to `rows`, the first one asked for most."""

    def __init__(self, rows: int, skew: float) -> None:
        """rows: 1 or more. skew: 0 (all alike) or more."""
        if rows < 1:
            raise ValueError(f"rows must be 1 or more, not {rows}")
        if not (math.isfinite(skew) and skew >= 0):
            raise ValueError(f"skew must be 0 or more, not {skew}")
        self.rows = rows
        self.skew = skew

    @property
    def text(self) -> str:
        return f"Zipf({self.skew:g})"

    @property
    def longest_interval(self) -> float:
        return float(self.rows**self.skew * self.rows)

    def head(self, rows: int) -> BoundedZipf:
        return BoundedZipf(rows, self.skew)

    @cached_property
    def hottest_share(self) -> float:
        """The share of look-ups that ask for the most popular row."""
        return float(1 / self._harmonic)

    def probabilities(self, first: int, last: int) -> Floats:
        """Returns the probabilities of ranks `first` to `last`, shape (last - first + 1,).

        They must fit into memory.
        """
        return np.asarray(
            np.arange(first, last + 1, dtype=np.float64) ** -self.skew / self._harmonic
        )

    def total(
        self, of: Callable[[Floats], Floats], first: int = 1, last: int | None = None
    ) -> float:
        """The sum of `of(probability)` over the ranks from `first` to `last`, all by default.

        of: takes probabilities, (n,), and gives as many values; smooth, as it is asked for at some
            places only.
        The first 4,096 ranks are added up. Of the others the sum is the integral from half a rank
        before the first to half a rank behind the last: the Euler-Maclaurin formula in the
        midpoint's form, whose next term is of the order of 1 / 4,096**2 of the sum. It's taken over
        the logarithm of the rank, by Gauss and Legendre's rule with 8 places a panel.
        """
        last = self.rows if last is None else min(last, self.rows)
        summed = min(last, _SUMMED_RANKS)
        result = float(np.sum(of(self.probabilities(first, summed)))) if first <= summed else 0.0
        if last > max(first - 1, summed):
            places, widths = _panels(max(first - 1, summed) + 0.5, last + 0.5)
            result += float(np.sum(of(places**-self.skew / self._harmonic) * widths))
        return result

    def share(self, first: int, last: int) -> float:
        """Returns the share of look-ups that ask for ranks `first` to `last`."""
        return self.total(lambda p: p, first, last) if last >= first else 0.0

    @cached_property
    def _harmonic(self) -> float:
        summed = min(self.rows, _SUMMED_RANKS)
        result = float(np.sum(np.arange(1, summed + 1, dtype=np.float64) ** -self.skew))
        if self.rows > summed:
            places, widths = _panels(summed + 0.5, self.rows + 0.5)
            result += float(np.sum(places**-self.skew * widths))
        return result


def _panels(begin: float, end: float) -> tuple[Floats, Floats]:
    """Places between, and how much of the way each stands for."""
    count = max(1, math.ceil(_PANELS_A_DECADE * math.log10(end / begin)))
    edges = np.linspace(math.log(begin), math.log(end), count + 1)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    places = np.exp((edges[:-1] + edges[1:])[:, None] / 2 + half * _NODES)
    return places.ravel(), (places * half * _WEIGHTS).ravel()
