"""Quantities as texts for people."""

from __future__ import annotations

__all__ = [
    "MAX_SECONDS",
    "bytes_text",
    "count_text",
    "figure_text",
    "known_text",
    "rate_text",
]

MAX_SECONDS = 7 * 86400
"""The longest time limit: a week. Python itself fails on times that it can't wait for."""

_PREFIXES = ("", "k", "M", "G", "T", "P")


def bytes_text(count: float | None) -> str:
    """Returns bytes in powers of 1000, as vendors write them ("1.5 GB"), or a dash for None."""
    return "–" if count is None else f"{_scaled(count)}B"


def count_text(count: int, thing: str) -> str:
    """Returns "1 bar" or "3 bars"."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def figure_text(value: float) -> str:
    """Returns a figure with three significant digits: "0.0731", "5.6", "1,234"."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def known_text(value: float | None, form: str) -> str:
    """Returns a figure formatted with `form`, or a dash for None."""
    return "–" if value is None else format(value, form)


def rate_text(per_s: float) -> str:
    """Returns a rate in powers of 1000: "5 M"."""
    return _scaled(per_s).rstrip()


def _scaled(value: float) -> str:
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value /= 1000
        power += 1
    return f"{value:.3g} {_PREFIXES[power]}"
