"""The section on the time of a training step, by its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pmemlab.quantities import count_text
from pmemlab.report.documents import Results
from pmemlab.report.drawing.bars import Bar, BarGroup, Part, draw_bars
from pmemlab.report.drawing.canvas import Look
from pmemlab.report.page import Block, Figure, Section, Table
from pmemlab.report.sections.looks import THROUGHPUT_COMMAND, devices_text, method_text
from pmemlab.report.sections.scenario_figures import grouped, scenario_figures
from pmemlab.scenarios.rows import ResultRow

__all__ = ["step_times"]

_TITLE = "Where a step's time goes"
_COMPUTE: Final = "compute"
_FILLS: Final = (
    ("#24476b", ""),
    ("#a9c3da", ""),
    ("#ffffff", "////"),
    ("#dfe5eb", "xxxx"),
    ("#ffffff", "...."),
    ("#6f8aa5", "\\\\\\\\"),
)
_TIER_NAMES: Final = {"tier0": "first tier", "tier1": "second tier", "tier2": "third tier"}


def step_times(results: Results) -> Section:
    """Returns a figure for each scenario and machine, with a bar for each timed run."""
    timed = [row for row in results.rows if row.has_rates and row.step_ms]
    if not timed:
        missing_note = (
            f"No run here says where its time went; `{THROUGHPUT_COMMAND}` makes such runs."
        )
        return Section("step-times", _TITLE, missing_note=missing_note)
    blocks: list[Block] = [
        "The milliseconds of a training step, by part: work of the processor, and each tier of "
        "the storage."
    ]
    blocks += scenario_figures("step-times", timed, _figure)
    return Section("step-times", _TITLE, blocks)


def _figure(name: str, scenario: str, machine: str, rows: Sequence[ResultRow]) -> Figure:
    rows = sorted(rows, key=_total_ms)
    parts = _parts_of(rows)
    looks = {
        part: Look(_TIER_NAMES.get(part, part), *_FILLS[i % len(_FILLS)])
        for i, part in enumerate(parts)
    }
    groups = [
        BarGroup(
            storage_type,
            [
                Bar(
                    f"{devices_text(row)}, {method_text(row)}",
                    [Part(row.step_ms[part], looks[part]) for part in parts if part in row.step_ms],
                    f"{_total_ms(row):,.1f} ms",
                )
                for row in members
            ],
        )
        for storage_type, members in grouped(rows, lambda row: row.storage_type).items()
    ]
    caption = f"Milliseconds of a step in the scenario {scenario}, on the machine {machine}"
    slowest = rows[-1]
    alt = (
        f"{caption}: {count_text(len(rows), 'bar')} in {count_text(len(parts), 'part')}; "
        f"the longest is {slowest.storage_type} on {devices_text(slowest)} with "
        f"{_total_ms(slowest):,.1f} ms."
    )
    table = Table(
        caption,
        ("storage type", "devices", *(looks[part].label for part in parts), "step", "times are"),
        [
            (
                row.storage_type,
                devices_text(row),
                *(f"{row.step_ms[p]:,.2f}" if p in row.step_ms else "–" for p in parts),
                f"{_total_ms(row):,.2f}",
                row.kind_label,
            )
            for row in rows
        ],
        numeric=range(2, 3 + len(parts)),
    )
    return Figure(draw_bars(name, alt, groups, list(looks.values())), table)


def _total_ms(row: ResultRow) -> float:
    return sum(row.step_ms.values())


def _parts_of(rows: Iterable[ResultRow]) -> list[str]:
    """Returns compute first, then the tiers in order, then the other parts."""
    parts = {part for row in rows for part in row.step_ms}
    return sorted(parts, key=lambda part: (part != _COMPUTE, not part.startswith("tier"), part))
