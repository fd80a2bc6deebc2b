"""What a run found, for people: a table on the terminal and a picture beside the results."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from pmemlab.machines.protocol import Accelerator, Kind
from pmemlab.scenarios.metrics import Metric, MetricKind

__all__ = ["ResultRow", "chart_svg", "result_rows", "table"]

SAMPLES_PER_S = "samples_per_s"
LOOKUPS_PER_S = "lookups_per_s"
AUC = "auc"
HIT_RATE = "hit_rate"


@dataclass(frozen=True)
class ResultRow:
    """One storage type on one machine.

    proved: whether the machine is of the scenario's topology; else it is this computer as it is.
    kind: of the two rates.
    hit_rate: of the ids looked up, those whose row was in the first tier; None where it is unknown.
    """

    scenario: str
    storage_type: str
    machine: Kind
    accelerator: Accelerator
    proved: bool
    kind: MetricKind
    samples_per_s: float
    lookups_per_s: float
    auc: float | None
    hit_rate: float | None = None

    @property
    def machine_label(self) -> str:
        if not self.proved:
            return f"{self.machine}, unproved"
        return (
            f"{self.machine} ({self.accelerator})" if self.accelerator != "none" else self.machine
        )

    def rate_label(self, rate: float) -> str:
        """No digits where they would say nothing: somebody would compare them."""
        return "works" if self.kind == "functional-only" else f"{rate:,.0f}"


def result_rows(metrics: Iterable[Metric]) -> list[ResultRow]:
    """Gather the metrics of each run into a row, in the order in which runs first appear."""
    runs: dict[tuple[str, str, Kind, Accelerator], dict[str, Metric]] = {}
    for metric in metrics:
        run = (metric.scenario, metric.storage_type, metric.machine, metric.accelerator)
        runs.setdefault(run, {})[metric.name] = metric
    return [_row(of_run) for of_run in runs.values() if SAMPLES_PER_S in of_run]


def _row(metrics: Mapping[str, Metric]) -> ResultRow:
    samples, lookups = metrics[SAMPLES_PER_S], metrics[LOOKUPS_PER_S]
    return ResultRow(
        scenario=samples.scenario,
        storage_type=samples.storage_type,
        machine=samples.machine,
        accelerator=samples.accelerator,
        proved=not samples.facts.get("unproved"),
        kind=samples.kind,
        samples_per_s=samples.value or 0.0,
        lookups_per_s=lookups.value or 0.0,
        auc=metrics[AUC].value,
        hit_rate=metrics[HIT_RATE].value if HIT_RATE in metrics else None,
    )


def table(rows: Sequence[ResultRow], width: int) -> str:
    """Return the table of storage type × machine × metrics, at most `width` columns wide."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for heading in ("scenario", "storage type"):
        grid.add_column(heading, no_wrap=True)
    grid.add_column("machine")
    for heading in ("samples/s", "lookups/s", "hits", "AUC"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("rates are", min_width=len("functional-only"))
    for row in rows:
        grid.add_row(
            row.scenario,
            row.storage_type,
            row.machine_label,
            row.rate_label(row.samples_per_s),
            row.rate_label(row.lookups_per_s),
            "-" if row.hit_rate is None else f"{row.hit_rate:.0%}",
            "-" if row.auc is None else f"{row.auc:.3f}",
            row.kind,
        )
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


_BAR_HEIGHT, _LABEL_WIDTH, _BAR_WIDTH, _MARGIN = 22, 320, 420, 16


def chart_svg(rows: Sequence[ResultRow]) -> str:
    """Return a picture of the samples/s as bars; runs whose rates say nothing are but named.

    Each kind of machine has bars and a scale of its own: rates of different accelerators mean
    different things, and lengths must not invite to compare them.
    """
    groups: dict[tuple[str, MetricKind], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row.machine_label, row.kind), []).append(row)
    shapes: list[str] = []
    top = _MARGIN
    for (machine, kind), members in groups.items():
        shapes.append(_text(_MARGIN, top + 14, f"samples/s on {machine}, {kind}", bold=True))
        top += 26
        scale = max(row.samples_per_s for row in members) or 1.0
        for row in members:
            shapes += _bar(top, row, scale)
            top += _BAR_HEIGHT
        top += _MARGIN
    width = _LABEL_WIDTH + _BAR_WIDTH + 120
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'viewBox="0 0 {width} {top}" font-family="sans-serif" font-size="13">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _bar(top: int, row: ResultRow, scale: float) -> list[str]:
    length = 0.0 if row.kind == "functional-only" else row.samples_per_s / scale * _BAR_WIDTH
    return [
        _text(_MARGIN, top + 14, f"{row.scenario} · {row.storage_type}"),
        f'<rect x="{_LABEL_WIDTH}" y="{top + 3}" width="{length:.1f}" height="{_BAR_HEIGHT - 8}" '
        'fill="#3b6ea5"/>',
        _text(_LABEL_WIDTH + length + 6, top + 14, row.rate_label(row.samples_per_s)),
    ]


def _text(x: float, y: int, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}"{weight}>{escape(text)}</text>'
