"""How many lookups the first tier answers, by how much of the rows it holds."""

from __future__ import annotations

from typing import Final

from pmemlab.report.documents import Results
from pmemlab.report.drawing.points import Marker, Point, Scale, draw_points
from pmemlab.report.page import Figure, Section, Table
from pmemlab.report.sections.quantities import bytes_text
from pmemlab.scenarios.rows import ResultRow

__all__ = ["hit_rates"]

_TITLE = "Hit rate by size of the first tier"
_COUNTED: Final = Marker("counted in a run", "o", filled=True)
_PLANNED: Final = Marker("modelled, by a plan", "D", filled=False)


def hit_rates(results: Results) -> Section:
    """Runs and plans with several tiers, each at the share of the rows that its first tier has."""
    entries = [*_of_runs(results), *_of_plans(results)]
    if not entries:
        lacking = (
            "No run here has rows in more than one tier; `make scenarios` makes some, and `pmemlab "
            "plan --json` predicts others."
        )
        return Section("hit-rates", _TITLE, lacking=lacking)
    entries.sort(key=lambda entry: (entry[0], entry[1]))
    points = [
        Point(100 * share, 100 * hit_rate, number, marker)
        for number, (share, hit_rate, marker, _) in enumerate(entries, start=1)
    ]
    caption = "Lookups that the first tier answered, by the share of the rows that it holds"
    low, high = entries[0], entries[-1]
    alt = (
        f"{caption}: {len(points)} points, from {low[1]:.0%} of the lookups with {low[0]:.1%} of "
        f"the rows to {high[1]:.0%} with {high[0]:.1%}."
    )
    drawing = draw_points(
        "hit-rates",
        alt,
        points,
        Scale("rows in the first tier, % of all", "{:g}".format, logarithmic=True),
        Scale("lookups answered there, %", "{:g}".format, limits=(0, 100)),
    )
    table = Table(
        caption,
        ("number", "of", "rows there", "size", "hits", "is"),
        [
            (str(number), what[0], f"{share:.2%}", what[1], f"{hit_rate:.1%}", marker.label)
            for number, (share, hit_rate, marker, what) in enumerate(entries, start=1)
        ],
        numeric=(2, 3, 4),
    )
    text = (
        "A row in the first tier is found there; the others come from the tiers below. Hits are "
        "counted in training, so they mean the same on emulated machines as on real ones."
    )
    return Section("hit-rates", _TITLE, [text, Figure(drawing, f"{caption}.", table)])


_Entry = tuple[float, float, Marker, tuple[str, str]]
"""Share of the rows, hit rate, marker, and for the table what it is of and its bytes."""


def _of_runs(results: Results) -> list[_Entry]:
    seen: dict[tuple[object, ...], _Entry] = {}
    for row in results.rows:
        share, hits = row.first_tier_share, row.hit_rate
        if row.predicted or share is None or hits is None or not 0 < share < 1:
            continue
        what = (
            f"{row.scenario}, {row.storage_type}{_paced_as(row)}",
            bytes_text(row.first_tier_bytes),
        )
        seen.setdefault(
            (row.scenario, row.storage_type, share, hits), (share, hits, _COUNTED, what)
        )
    return list(seen.values())


def _paced_as(row: ResultRow) -> str:
    return f", paced as {row.devices_label}" if any(row.devices) else ""


def _of_plans(results: Results) -> list[_Entry]:
    """A plan has the same first tier with many devices: each size once."""
    seen: dict[tuple[float, float], _Entry] = {}
    for plan in results.plans:
        for choice in plan.choices:
            if len(choice.tier_bytes) < 2 or not choice.hit_rates:
                continue
            share = choice.tier_bytes[0] / sum(choice.tier_bytes)
            hits = choice.hit_rates[0]
            what = (f"{plan.file}, {choice.storage_type}", bytes_text(choice.tier_bytes[0]))
            if 0 < share < 1:
                seen.setdefault((round(share, 4), round(hits, 4)), (share, hits, _PLANNED, what))
    return list(seen.values())
