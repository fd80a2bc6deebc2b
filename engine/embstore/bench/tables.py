"""Tables of results for the terminal, and the formats of figures in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.table import Table

from embstore.bench.measure import Figure
from embstore.bench.tiers_figures import Goal


def table(
    title: str,
    names: Sequence[str],
    figures: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str | None = None,
    remark: bool = False,
    one_line: Literal["", "names", "all"] = "",
    section: int = 0,
) -> Table:
    """Returns a table with columns of names on the left and columns of figures on the right.

    remark: whether a column without a heading follows. one_line: the columns whose cells aren't
    wrapped. section: number of first cells that name a setting; a new section begins when the
    setting changes. 0: there are no sections.
    """
    new_table = Table(title=title, caption=caption)
    for name in names:
        new_table.add_column(name, no_wrap=one_line != "")
    for figure in figures:
        new_table.add_column(figure, justify="right", no_wrap=one_line == "all")
    if remark:
        new_table.add_column("")
    setting = None
    for row in rows:
        last, setting = setting, row[:section]
        if last is not None and last != setting:
            new_table.add_section()
        new_table.add_row(*row)
    return new_table


def number(value: float | None, decimals: int = 2) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def span(figure: Figure, decimals: int) -> str:
    """Returns the rates of the slowest and the fastest round, in million items/s."""
    return f"{figure.minimum / 1e6:.{decimals}f} to {figure.maximum / 1e6:.{decimals}f}"


def reached(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def goal_table(goals: Iterable[Goal], decimals: int, *, with_dim: bool = True) -> Table:
    rows = [
        (
            str(goal.dim),
            goal.what,
            f"≥ {goal.at_least:g}" if goal.at_least is not None else f"≤ {goal.at_most:g}",
            number(goal.value, decimals),
            reached(goal.reached),
        )
        for goal in goals
    ]
    first = 0 if with_dim else 1
    return table(
        "Aims",
        ("dim", "figure")[first:],
        ("aim", "measured"),
        [row[first:] for row in rows],
        remark=True,
    )


def unavailable_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Returns a table of contenders that weren't measured; the last cell of a row is the reason."""
    return table("Not measured: not available here", (*names, "why"), (), rows)
