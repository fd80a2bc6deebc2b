"""The section on persistent memory behind a DRAM cache, compared with a tier of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pmemlab.quantities import bytes_text, known_text
from pmemlab.report.documents import CacheSweep, FirstTier, Results
from pmemlab.report.drawing.bars import Bar, BarGroup, Part, draw_bars
from pmemlab.report.page import Block, Figure, Section, Table
from pmemlab.report.sections.looks import ALL_LOOKS, PREDICTED, devices_text, rate_look
from pmemlab.scenarios.rows import ResultRow

__all__ = ["memory_mode"]

_TITLE = "Memory mode against app direct"
_SUFFIX: Final = "-memory-mode"
"""The ending of a device's name when the device has DRAM as its cache."""


def memory_mode(results: Results) -> Section:
    """Returns a figure for each table tried with several sizes of DRAM, and one for each device,
    scenario and machine with both modes."""
    figures: dict[tuple[str, str, str], tuple[list[ResultRow], list[ResultRow]]] = {}
    rated = [row for row in results.rows if row.has_rates]
    for row in rated:
        for device in row.devices:
            if device is not None:
                key = (device.removesuffix(_SUFFIX), row.scenario, row.machine_label)
                cached, direct = figures.setdefault(key, ([], []))
                (cached if device.endswith(_SUFFIX) else direct).append(row)
    both = {key: pair for key, pair in figures.items() if all(pair)}
    sweeps = [(sweep, tiers) for sweep in results.cache_sweeps if (tiers := _modelled(sweep))]
    if not both and not sweeps:
        missing_note = (
            "Nothing here ran both in memory mode and in app direct; `make cache-sizes` does."
        )
        return Section("memory-mode", _TITLE, missing_note=missing_note)
    blocks: list[Block] = [
        "In memory mode, DRAM is a cache that the hardware fills by lines of 64 bytes, whatever is "
        "in them. In app direct, the engine decides by rows what lies where. The time of the "
        "memories alone tells the modes apart where the processor's own work hides it in a rate."
    ]
    blocks += [
        _sweep_figure(f"memory-mode-sizes-{number}", sweep, tiers)
        for number, (sweep, tiers) in enumerate(sweeps)
    ]
    blocks += [
        _figure(f"memory-mode-{number}", *key, *pair)
        for number, (key, pair) in enumerate(both.items())
    ]
    return Section("memory-mode", _TITLE, blocks)


_MemoryTimes = tuple[FirstTier, float, float]
"""A first tier, and memory time per id in nanoseconds: in app direct, and in memory mode."""


def _modelled(sweep: CacheSweep) -> list[_MemoryTimes]:
    return [
        (tier, tier.app_direct_memory_ns, tier.memory_mode_memory_ns)
        for tier in sweep.first_tiers
        if tier.app_direct_memory_ns is not None and tier.memory_mode_memory_ns is not None
    ]


def _sweep_figure(name: str, sweep: CacheSweep, tiers: Sequence[_MemoryTimes]) -> Figure:
    groups = [
        BarGroup(
            f"{bytes_text(tier.bytes)} of DRAM, for {tier.share:.1%} of the rows",
            [
                Bar(mode, [Part(memory_ns, PREDICTED)], f"{memory_ns:.1f}")
                for mode, memory_ns in (("app direct", direct_ns), ("memory mode", cached_ns))
            ],
        )
        for tier, direct_ns, cached_ns in tiers
    ]
    caption = (
        f"Nanoseconds of memory an id takes on {sweep.dram} before {sweep.pmem}, of {sweep.table}"
    )
    ratios = [cached_ns / (direct_ns or 1) for _, direct_ns, cached_ns in tiers]
    alt = (
        f"{caption}: with as much DRAM, memory mode takes {min(ratios):.2f} to "
        f"{max(ratios):.2f} times as long as app direct."
    )
    table = Table(
        caption,
        (
            *("DRAM", "of the rows", "app direct, ns", "memory mode, ns"),
            *("hits in app direct, counted", "hits in memory mode"),
            *("app direct, M ids/s", "memory mode, M ids/s", "times and rates are"),
        ),
        [
            (
                bytes_text(tier.bytes),
                f"{tier.share:.1%}",
                f"{direct_ns:.1f}",
                f"{cached_ns:.1f}",
                f"{tier.hit_rate:.1%}",
                known_text(tier.memory_mode_hit_rate, ".1%"),
                _millions(tier.app_direct_ids_per_s),
                _millions(tier.memory_mode_ids_per_s),
                "modelled, predicted",
            )
            for tier, direct_ns, cached_ns in tiers
        ],
        numeric=range(8),
    )
    return Figure(draw_bars(name, alt, groups, ALL_LOOKS), table)


def _millions(per_s: float | None) -> str:
    return "–" if per_s is None else f"{per_s / 1e6:.2f}"


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
                    [Part(row.samples_per_s, rate_look(row.kind, row.predicted))],
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
    return Figure(draw_bars(name, alt, groups, ALL_LOOKS), table)


def _fastest_first(rows: Sequence[ResultRow]) -> list[ResultRow]:
    return sorted(rows, key=lambda row: -row.samples_per_s)
