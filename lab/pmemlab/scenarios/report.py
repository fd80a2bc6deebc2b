"""The tables at the end of a run: rates that mean something; apart, runs that work, and runs that
were not judged."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pmemlab.scenarios.metrics import Metric
from pmemlab.scenarios.rows import ResultRow, modelled_rates_of, rate_cells

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["replaced_lines", "tables"]


def tables(rows: Sequence[ResultRow], width: int) -> str:
    """Returns a table of measured and modelled rates, one of runs without rates, and one of
    programs that were not judged, each only if it has rows.

    All are at most `width` columns wide. A rate that is not `measured` (see `rate_kinds`) is never
    printed, or users would compare it. In its place stands the rate modelled on the devices that
    the media stand for.
    """
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, highlight=False)
    without_rates = [row for row in rows if not row.has_rates]
    works = [row for row in without_rates if not row.not_judged]
    unjudged = [row for row in without_rates if row.not_judged]
    modelled = modelled_rates_of(works, rows)
    rated = [row for row in rows if row.has_rates and row not in modelled.values()]
    parts: list[tuple[str, Table]] = []
    if rated:
        parts.append(("rates, of real media or modelled devices:", _rates(rated)))
    if works:
        title = "the rates of these runs would say nothing:"
        if modelled:
            title = (
                "samples/s are modelled on the devices that the emulated media stand for, "
                "USD/h is of the cheapest machine that holds them:"
            )
        parts.append((f"works; {title}", _functional_table(works, modelled)))
    if unjudged:
        parts.append(("ran; whether they work is not judged:", _unjudged_table(unjudged)))
    for number, (title, table) in enumerate(parts):
        console.print("\n" * bool(number) + title + "\n")
        console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def replaced_lines(metrics: Iterable[Metric]) -> list[str]:
    """Returns a line for each medium of a topology that a machine replaced."""
    by_medium: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        replaced = metric.facts.get("replaced")
        for what in replaced if isinstance(replaced, list) else []:
            topologies = by_medium.setdefault((metric.machine, what), [])
            if metric.topology not in topologies:
                topologies.append(metric.topology)
    return [
        f"replaced by the {machine} machine: {what} ({', '.join(topologies)})"
        for (machine, what), topologies in by_medium.items()
    ]


def _rates(rows: Sequence[ResultRow]) -> Table:
    on_devices = any(any(row.devices) for row in rows)
    numbers = ("samples/s", "lookups/s", "hits", "AUC")
    grid = _grid(["machine", *(["devices"] if on_devices else [])], numbers)
    grid.add_column("rates are", min_width=len("modelled,"))
    for row in rows:
        grid.add_row(
            *_run(row),
            *([row.devices_label] if on_devices else []),
            f"{row.samples_per_s:,.0f}",
            "-" if row.lookups_per_s is None else f"{row.lookups_per_s:,.0f}",
            *_result_cells(row),
            row.kind_label,
        )
    return grid


def _functional_table(rows: Sequence[ResultRow], modelled: Mapping[int, ResultRow]) -> Table:
    if not modelled:
        grid = _grid(["machine"], ["hits", "AUC"])
    else:
        grid = _grid(["machine", "devices"], ["samples/s", "of DRAM", "USD/h", "hits", "AUC"])
    for number, row in enumerate(rows):
        rate = modelled.get(number)
        cells = rate_cells(rate) if rate else ("-", "-", "-", "-")
        grid.add_row(*_run(row), *(cells if modelled else ()), *_result_cells(row))
    return grid


def _unjudged_table(rows: Sequence[ResultRow]) -> Table:
    grid = _grid(["machine", "not judged"], [])
    for row in rows:
        grid.add_row(*_run(row), " and ".join(row.not_judged))
    return grid


def _grid(texts: Iterable[str], numbers: Iterable[str]) -> Table:
    """Returns a table of runs with these headings of its columns."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for heading in ("scenario", "storage type"):
        grid.add_column(heading, no_wrap=True)
    for heading in texts:
        grid.add_column(heading)
    for heading in numbers:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def _run(row: ResultRow) -> tuple[str, str, str]:
    return row.scenario, row.storage_type, row.machine_label


def _result_cells(row: ResultRow) -> tuple[str, str]:
    return (
        "-" if row.hit_rate is None else f"{row.hit_rate:.0%}",
        "-" if row.auc is None else f"{row.auc:.3f}",
    )
