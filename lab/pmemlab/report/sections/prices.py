"""The section on plans: price and speed of the choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pmemlab.quantities import bytes_text, count_text, figure_text, known_text, rate_text
from pmemlab.report.documents import PlanChoice, Results
from pmemlab.report.drawing.points import Marker, Point, Scale, draw_points
from pmemlab.report.page import Block, Figure, Fold, Section, Table

__all__ = ["prices"]

_TITLE = "Price against speed"
_MAX_UNPRICED: Final = 40
_MARKERS: Final = {
    "memory mode": Marker("persistent memory in memory mode", "D", filled=True),
    "HBM": Marker("with the memory of GPUs", "P", filled=True),
    "SSD": Marker("with an SSD", "^", filled=False),
    "PMEM": Marker("with persistent memory", "s", filled=False),
    "DRAM": Marker("memory of one kind", "o", filled=True),
}


def prices(results: Results) -> Section:
    """Returns, for each plan, a figure of the choices with a price, and a table of the others."""
    plans = [plan for plan in results.plans if plan.choices]
    if not plans:
        missing_note = (
            "No plan is here; `pmemlab model plan --rows 2e9 --dim 64 --skew 1.05 "
            "--lookups-per-s 5e6 --json results/plan.json` makes one."
        )
        return Section("prices", _TITLE, missing_note=missing_note)
    blocks: list[Block] = [
        "What each way to store the tables costs a month, and how many lookups a second its "
        "machines can do at most. No choice is both cheaper and faster than one on the dashed "
        "line. All of it is modelled."
    ]
    if any("HBM" in choice.storage_type for plan in plans for choice in plan.choices):
        bounds = (
            "The figures of GPUs are their makers' bandwidths, so lookups a second of choices with "
            "HBM are bounds."
        )
        if results.fidelity:
            bounds += " Other engines' published rates are beside such bounds further down."
        blocks.append(bounds)
    for number, plan in enumerate(plans):
        workload = ", ".join(_argument(*item) for item in plan.workload.items())
        blocks.append(f"`{plan.file}` plans for {workload}.")
        priced = [choice for choice in plan.choices if choice.usd_per_month and choice.machines]
        if priced:
            blocks.append(_figure(f"prices-{number}", plan.file, priced))
        unpriced = [choice for choice in plan.choices if choice not in priced]
        if unpriced:
            blocks.append(_unpriced(plan.file, unpriced))
    return Section("prices", _TITLE, blocks)


def _argument(name: str, value: object) -> str:
    if isinstance(value, list):  # a list of tables
        return count_text(len(value), name.removesuffix("s"))
    if isinstance(value, bool):
        value = "yes" if value else "no"
    text = f"{value:,.15g}" if isinstance(value, (int, float)) else str(value)
    return f"{name.replace('_', ' ')} {text}"


def _figure(name: str, file: str, choices: Sequence[PlanChoice]) -> Figure:
    points = [
        Point(choice.usd_per_month or 0, _lookups_per_s(choice), choice.rank, _marker(choice))
        for choice in choices
    ]
    caption = f"Lookups a second by price a month, of the choices in {file} that have a price"
    front = _front(points)
    by_rank = {choice.rank: choice for choice in choices}
    cheapest, fastest = by_rank[front[0].number], by_rank[front[-1].number]
    alt = (
        f"{caption}: {count_text(len(points), 'point')}. The cheapest is {_name(cheapest)} for "
        f"${front[0].x:,.0f}, the fastest {_name(fastest)} for ${front[-1].x:,.0f}."
    )
    drawing = draw_points(
        name,
        alt,
        points,
        Scale("US dollars a month", lambda usd: f"${rate_text(usd)}", logarithmic=True),
        Scale("lookups/s at most", rate_text, logarithmic=True),
        lines=[front],
    )
    table = Table(
        caption,
        (
            *("number", "storage type", "devices", "$ a month", "$ a million lookups"),
            *("machines", "lookups/s at most", "ms a step", "bytes a tier", "hits a tier"),
        ),
        [
            (
                str(choice.rank),
                choice.storage_type,
                " + ".join(choice.devices),
                f"{choice.usd_per_month:,.0f}",
                known_text(choice.usd_per_million_lookups, ".2g"),
                f"{choice.machines:g} × {choice.machine}",
                f"{_lookups_per_s(choice):,.0f}",
                *_tiers(choice),
            )
            for choice in choices
        ],
        numeric=(3, 4, 6, 7),
    )
    return Figure(drawing, table)


def _unpriced(file: str, choices: Sequence[PlanChoice]) -> Fold:
    shown = choices[:_MAX_UNPRICED]
    extent = "" if len(shown) == len(choices) else f", the first {len(shown)}"
    table = Table(
        f"Without a price: {len(choices)} of the choices in {file}{extent}",
        (
            *("number", "storage type", "devices", "lookups/s a machine", "ms a step"),
            *("bytes a tier", "hits a tier", "why"),
        ),
        [
            (
                str(choice.rank),
                choice.storage_type,
                " + ".join(choice.devices),
                f"{choice.lookups_per_s:,.0f}",
                *_tiers(choice),
                choice.why_unpriced,
            )
            for choice in shown
        ],
        numeric=(3, 4),
    )
    return Fold(table.caption, table)


def _tiers(choice: PlanChoice) -> tuple[str, str, str]:
    return (
        "–" if choice.step_ms is None else figure_text(choice.step_ms),
        " + ".join(bytes_text(tier.bytes) for tier in choice.tiers),
        " + ".join(f"{tier.hit_rate:.1%}" for tier in choice.tiers),
    )


def _name(choice: PlanChoice) -> str:
    return f"{choice.storage_type} on {' + '.join(choice.devices)}"


def _lookups_per_s(choice: PlanChoice) -> float:
    """Returns the lookups per second of all machines that are paid for."""
    return choice.lookups_per_s * (choice.machines or 1)


def _marker(choice: PlanChoice) -> Marker:
    if any(device.endswith("-memory-mode") for device in choice.devices):
        return _MARKERS["memory mode"]
    if "HBM" in choice.storage_type:
        return _MARKERS["HBM"]
    if any(kind in choice.storage_type for kind in ("SSD", "LEVELDB")):
        return _MARKERS["SSD"]
    return _MARKERS["PMEM" if "PMEM" in choice.storage_type else "DRAM"]


def _front(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other point beats in both price and speed, the cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front
