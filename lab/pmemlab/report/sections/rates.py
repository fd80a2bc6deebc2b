"""The section on samples per second, by storage type and device."""

from __future__ import annotations

from collections.abc import Sequence

from pmemlab.quantities import count_text, known_text
from pmemlab.report.documents import Results
from pmemlab.report.drawing.bars import Bar, BarGroup, Part, draw_bars
from pmemlab.report.page import Block, Figure, Section, Table
from pmemlab.report.sections.looks import ALL_LOOKS, THROUGHPUT_COMMAND, devices_text, rate_look
from pmemlab.report.sections.scenario_figures import grouped, scenario_figures
from pmemlab.scenarios.rows import ResultRow

__all__ = ["rates"]

_TITLE = "Samples a second"


def rates(results: Results) -> Section:
    """Returns a figure for each scenario and machine, with a bar for each run."""
    rated = [row for row in results.rows if row.has_rates]
    if not rated:
        missing_note = (
            f"No run here has a rate that means something; `{THROUGHPUT_COMMAND}` makes some."
        )
        return Section("rates", _TITLE, missing_note=missing_note)
    blocks: list[Block] = [
        "How many samples a second a model trains on, by storage type and by the devices that its "
        "tiers are on, first tier first. What was measured ran on this computer's own media; what "
        "is modelled takes devices' published figures."
    ]
    blocks += scenario_figures("rates", rated, _figure)
    return Section("rates", _TITLE, blocks)


def _figure(name: str, scenario: str, machine: str, rows: Sequence[ResultRow]) -> Figure:
    rows = sorted(rows, key=lambda row: -row.samples_per_s)
    groups = [
        BarGroup(storage_type, [_bar(row) for row in members])
        for storage_type, members in grouped(rows, lambda row: row.storage_type).items()
    ]
    best = rows[0]
    caption = f"Samples a second in the scenario {scenario}, on the machine {machine}"
    alt = (
        f"{caption}: {count_text(len(rows), 'bar')} by storage type; the longest is "
        f"{best.storage_type} on {devices_text(best)} with "
        f"{best.samples_per_s:,.0f} ({best.kind_label})."
    )
    table = Table(
        caption,
        ("storage type", "devices", "samples/s", "lookups/s", "hits", "rates are"),
        [
            (
                row.storage_type,
                devices_text(row),
                f"{row.samples_per_s:,.0f}",
                known_text(row.lookups_per_s, ",.0f"),
                known_text(row.hit_rate, ".1%"),
                row.kind_label,
            )
            for row in rows
        ],
        numeric=(2, 3, 4),
    )
    return Figure(draw_bars(name, alt, groups, ALL_LOOKS), table)


def _bar(row: ResultRow) -> Bar:
    look = rate_look(row.kind, row.predicted)
    return Bar(devices_text(row), [Part(row.samples_per_s, look)], f"{row.samples_per_s:,.0f}")
