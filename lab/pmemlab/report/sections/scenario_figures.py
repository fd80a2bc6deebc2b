"""Runs shared out among figures: which may stand on one scale, and which may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pmemlab.report.page import Figure
from pmemlab.scenarios.rows import ResultRow

__all__ = ["by_storage_type", "scenario_figures"]

DrawFigure = Callable[[str, str, str, Sequence[ResultRow]], Figure]
"""Of its name, which is unique in the page, a scenario, a machine and their runs."""


def scenario_figures(name: str, rows: Iterable[ResultRow], draw: DrawFigure) -> list[Figure]:
    """A figure a scenario and machine, numbered: different ones can't be compared, so that they
    share no scale."""
    figures: dict[tuple[str, str], list[ResultRow]] = {}
    for row in rows:
        figures.setdefault((row.scenario, row.machine_label), []).append(row)
    return [
        draw(f"{name}-{number}", scenario, machine, members)
        for number, ((scenario, machine), members) in enumerate(figures.items())
    ]


def by_storage_type(rows: Iterable[ResultRow]) -> Mapping[str, Sequence[ResultRow]]:
    """The runs of each storage type; both in the order of their appearance."""
    of_type: dict[str, list[ResultRow]] = {}
    for row in rows:
        of_type.setdefault(row.storage_type, []).append(row)
    return of_type
