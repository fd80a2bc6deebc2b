"""The popularity of rows by a bounded Zipf distribution.

A look-up asks for the row of rank r, from 1 to `rows`, with probability r ** -skew / H, where H is
the sum of r ** -skew over all ranks. `embstore.bench` draws ids from the same distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmemlab.model.planning.popularity import NEVER, Floats, Popularity

__all__ = ["BoundedZipf"]

_SUMMED_RANKS = 4096
_PANELS_A_DECADE = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


class BoundedZipf(Popularity):
    """A `Popularity` of ranks 1 to `rows`, rank 1 the most popular."""

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
