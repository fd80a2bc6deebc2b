"""Persistent memory as memory behind a DRAM cache, against the same as a tier of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pmemlab.report.documents import Results
from pmemlab.report.drawing.bars import Bar, BarGroup, Part, draw_bars
from pmemlab.report.page import Block, Figure, Section, Table
from pmemlab.report.sections.looks import ALL, THROUGHPUT_COMMAND, devices_text, look_of
from pmemlab.scenarios.rows import ResultRow

__all__ = ["memory_mode"]

_TITLE = "Memory mode against app direct"
_SUFFIX: Final = "-memory-mode"
"""Of a device that is another, whose name stands before it, with DRAM as its cache."""


def memory_mode(results: Results) -> Section:
    """A figure a device, scenario and machine that has both."""
    figures: dict[tuple[str, str, str], tuple[list[ResultRow], list[ResultRow]]] = {}
    rated = [row for row in results.rows if row.has_rates]
    for row in rated:
        for device in row.devices:
            if device is not None:
                key = (device.removesuffix(_SUFFIX), row.scenario, row.machine_label)
                cached, direct = figures.setdefault(key, ([], []))
                (cached if device.endswith(_SUFFIX) else direct).append(row)
    both = {key: pair for key, pair in figures.items() if all(pair)}
    if not both:
        lacking = (
            "No scenario here ran on a device both in memory mode and in app direct; "
            f"`{THROUGHPUT_COMMAND}` does that."
        )
        return Section("memory-mode", _TITLE, lacking=lacking)
    blocks: list[Block] = [
        "In memory mode, DRAM is a cache that the hardware fills by lines of 64 bytes, whatever is "
        "in them. In app direct, the engine decides by rows what lies where."
    ]
    blocks += [
        _figure(f"memory-mode-{number}", *key, *pair)
        for number, (key, pair) in enumerate(both.items())
    ]
    return Section("memory-mode", _TITLE, blocks)


def _figure(
    name: str,
    device: str,
    scenario: str,
    machine: str,
    cached: Sequence[ResultRow],
    direct: Sequence[ResultRow],
) -> Figure:
    sides = {"memory mode": _fastest_first(cached), "app direct": _fastest_first(direct)}
    groups = [
        BarGroup(
            side,
            [
                Bar(
                    f"{row.storage_type} on {devices_text(row)}",
                    [Part(row.samples_per_s, look_of(row.kind, row.predicted))],
                    f"{row.samples_per_s:,.0f}",
                )
                for row in rows
            ],
        )
        for side, rows in sides.items()
    ]
    caption = f"Samples a second with {device} in both modes, scenario {scenario} on {machine}"
    ratio = sides["app direct"][0].samples_per_s / (sides["memory mode"][0].samples_per_s or 1)
    alt = (
        f"{caption}: the fastest in app direct, {sides['app direct'][0].storage_type}, has "
        f"{ratio:.2f} times the rate of memory mode."
    )
    table = Table(
        caption,
        ("mode", "storage type", "devices", "samples/s", "rates are"),
        [
            (
                side,
                row.storage_type,
                devices_text(row),
                f"{row.samples_per_s:,.0f}",
                row.kind_label,
            )
            for side, rows in sides.items()
            for row in rows
        ],
        numeric=(3,),
    )
    return Figure(draw_bars(name, alt, groups, ALL), f"{caption}.", table)


def _fastest_first(rows: Sequence[ResultRow]) -> list[ResultRow]:
    return sorted(rows, key=lambda row: -row.samples_per_s)
