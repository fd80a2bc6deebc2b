"""The section on hit rates: lookups that the first tier answers, by its share of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pmemlab.quantities import bytes_text, count_text
from pmemlab.report.documents import CacheSweep, Plan, Results
from pmemlab.report.drawing.points import Marker, Point, Scale, draw_points
from pmemlab.report.page import Figure, Section, Table
from pmemlab.scenarios.rows import ResultRow

__all__ = ["hit_rates"]

_TITLE = "Hit rate by size of the first tier"
_COUNTED: Final = Marker("counted in a run", "o", filled=True)
_PLANNED: Final = Marker("modelled, by a plan", "D", filled=False)
_MEMORY_MODE: Final = Marker("modelled, as memory mode's cache", "s", filled=False)


@dataclass(frozen=True)
class _FirstTier:
    """A first tier. share: of all rows, from 0 to 1. hits: of all lookups, from 0 to 1.

    line: the line that joins its point with others, if any."""

    share: float
    hits: float
    bytes: float | None
    source: str
    marker: Marker
    line: str = ""


def hit_rates(results: Results) -> Section:
    """Returns runs and plans with several tiers, by the first tier's share of the rows."""
    tiers = _tiers_of_runs(results.rows)
    for sweep in results.cache_sweeps:
        tiers += _tiers_of_sweep(sweep)
    for plan in results.plans:
        tiers += _tiers_of_plan(plan)
    if not tiers:
        missing_note = (
            "No run here has rows in more than one tier; `make cache-sizes` tries several sizes, "
            "and `pmemlab model plan --json` predicts others."
        )
        return Section("hit-rates", _TITLE, missing_note=missing_note)
    text = (
        "A row in the first tier is found there; the others come from the tiers below. Hits are "
        "counted in training, so they mean the same on emulated machines as on real ones. A line "
        "joins the sizes of one table."
    )
    tiers.sort(key=lambda tier: (tier.share, tier.hits))
    return Section("hit-rates", _TITLE, [text, _figure(tiers)])


def _figure(tiers: Sequence[_FirstTier]) -> Figure:
    points = [
        Point(100 * tier.share, 100 * tier.hits, number, tier.marker)
        for number, tier in enumerate(tiers, start=1)
    ]
    names = dict.fromkeys(tier.line for tier in tiers if tier.line)
    lines = [
        [point for point, tier in zip(points, tiers, strict=True) if tier.line == name]
        for name in names
    ]
    caption = "Lookups that the first tier answered, by the share of the rows that it holds"
    low, high = tiers[0], tiers[-1]
    alt = (
        f"{caption}: {count_text(len(points), 'point')}, from {low.hits:.0%} of the lookups "
        f"with {low.share:.2%} of the rows to {high.hits:.0%} with {high.share:.2%}."
    )
    drawing = draw_points(
        "hit-rates",
        alt,
        points,
        Scale("rows in the first tier, % of all", "{:g}".format, logarithmic=True),
        Scale("lookups answered there, %", "{:g}".format, limits=(0, 100)),
        lines,
    )
    table = Table(
        caption,
        ("number", "of", "rows there", "size", "hits", "is"),
        [
            (
                str(point.number),
                tier.source,
                f"{tier.share:.2%}",
                bytes_text(tier.bytes),
                f"{tier.hits:.1%}",
                tier.marker.label,
            )
            for point, tier in zip(points, tiers, strict=True)
        ],
        numeric=(2, 3, 4),
    )
    return Figure(drawing, table)


def _tiers_of_runs(rows: Sequence[ResultRow]) -> list[_FirstTier]:
    tiers: dict[_FirstTier, None] = {}
    for row in rows:
        share, hits = row.first_tier_share, row.hit_rate
        if row.predicted or share is None or hits is None or not 0 < share < 1:
            continue  # a prediction repeats its run's; a single tier has all
        paced = f", paced as {row.devices_label}" if any(row.devices) else ""
        source = f"{row.scenario}, {row.storage_type} on {row.machine_label}{paced}"
        tiers.setdefault(_FirstTier(share, hits, row.first_tier_bytes, source, _COUNTED))
    return list(tiers)


def _tiers_of_sweep(sweep: CacheSweep) -> list[_FirstTier]:
    direct = [
        _FirstTier(tier.share, tier.hit_rate, tier.bytes, sweep.table, _COUNTED, sweep.table)
        for tier in sweep.first_tiers
    ]
    of_cache = f"{sweep.table}, in memory mode"
    cached = [
        _FirstTier(
            tier.share, tier.memory_mode_hit_rate, tier.bytes, of_cache, _MEMORY_MODE, of_cache
        )
        for tier in sweep.first_tiers
        if tier.memory_mode_hit_rate is not None
    ]
    return direct + cached


def _tiers_of_plan(plan: Plan) -> list[_FirstTier]:
    """Returns each size of a plan's first tier once: choices share it, with other devices below."""
    sizes: dict[tuple[float, float], _FirstTier] = {}
    for choice in plan.choices:
        first = choice.tiers[0]
        share = first.rows / (sum(tier.rows for tier in choice.tiers) or 1)
        if 0 < share < 1:
            tier = _FirstTier(
                share, first.hit_rate, first.bytes, plan.file, _PLANNED, line=plan.file
            )
            sizes.setdefault((round(share, 4), round(first.hit_rate, 4)), tier)
    return list(sizes.values())
