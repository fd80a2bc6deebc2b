"""Groups runs into figures, whose runs share a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pmemlab.report.page import Figure
from pmemlab.scenarios.rows import ResultRow

__all__ = ["grouped", "scenario_figures"]

K = TypeVar("K")
T = TypeVar("T")

DrawFigure = Callable[[str, str, str, Sequence[ResultRow]], Figure]
"""Draws a figure. Takes its name, unique in the page, a scenario, a machine and their runs."""


def scenario_figures(name: str, rows: Iterable[ResultRow], draw: DrawFigure) -> list[Figure]:
    """Returns a numbered figure for each scenario and machine. Different ones can't be compared, so
    they share no scale."""
    figures = grouped(rows, lambda row: (row.scenario, row.machine_label))
    return [
        draw(f"{name}-{number}", scenario, machine, members)
        for number, ((scenario, machine), members) in enumerate(figures.items())
    ]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Returns key -> items, both in the order of appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
