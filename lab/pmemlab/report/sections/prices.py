"""What a plan's choices cost, against how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pmemlab.report.documents import Plan, PlanChoice, Results
from pmemlab.report.drawing.points import Marker, Point, Scale, draw_points
from pmemlab.report.page import Block, Figure, Section, Table
from pmemlab.report.sections.quantities import bytes_text, rate_text
from pmemlab.yaml_fields import is_number

__all__ = ["prices"]

_TITLE = "Price against speed"
_MARKERS: Final = {
    "memory mode": Marker("persistent memory in memory mode", "D", filled=True),
    "SSD": Marker("with an SSD", "^", filled=False),
    "PMEM": Marker("with persistent memory", "s", filled=False),
    "DRAM": Marker("memory of one kind", "o", filled=True),
}


def prices(results: Results) -> Section:
    """A figure a plan."""
    if not any(plan.choices for plan in results.plans):
        lacking = (
            "No plan is here; `pmemlab plan --rows 2e9 --dim 64 --lookups-per-s 5e6 --json > "
            "results/plan.json` makes one."
        )
        return Section("prices", _TITLE, lacking=lacking)
    blocks: list[Block] = [
        "What each way to store the tables costs a month, and how many lookups a second it is "
        "predicted to serve. No choice is both cheaper and faster than one on the dashed line. All "
        "of it is modelled."
    ]
    for number, plan in enumerate(results.plans):
        if plan.choices:
            asked = ", ".join(_argument(*item) for item in plan.arguments.items() if item[1])
            blocks.append(f"Planned in {plan.file} for {asked}." if asked else plan.file)
            blocks.append(_figure(f"prices-{number}", plan))
    return Section("prices", _TITLE, blocks)


def _argument(name: str, value: object) -> str:
    text = f"{value:,.15g}" if is_number(value) else str(value)
    return f"{name.replace('_', ' ')} {text}"


def _figure(name: str, plan: Plan) -> Figure:
    points = [
        Point(choice.usd_per_month, choice.lookups_per_s, number, _marker(choice))
        for number, choice in enumerate(plan.choices, start=1)
    ]
    caption = f"Lookups a second by price a month, of the choices in {plan.file}"
    front = _front(points)
    cheapest = plan.choices[front[0].number - 1]
    fastest = plan.choices[front[-1].number - 1]
    alt = (
        f"{caption}: {len(points)} points. The cheapest is {cheapest.storage_type} for "
        f"${cheapest.usd_per_month:,.0f}, the fastest {fastest.storage_type} for "
        f"${fastest.usd_per_month:,.0f}."
    )
    drawing = draw_points(
        name,
        alt,
        points,
        Scale("US dollars a month", lambda usd: f"${rate_text(usd)}", logarithmic=True),
        Scale("lookups/s", rate_text, logarithmic=True),
        line=front,
    )
    table = Table(
        caption,
        (
            *("number", "storage type", "devices", "lookups/s", "$ a month"),
            *("$ a million lookups", "machines", "ms a step", "bytes a tier", "hits a tier"),
        ),
        [_cells(number, choice) for number, choice in enumerate(plan.choices, start=1)],
        numeric=(3, 4, 5, 6, 7),
    )
    return Figure(drawing, f"{caption}.", table)


def _cells(number: int, choice: PlanChoice) -> Sequence[str]:
    def known(value: float | None, text: str) -> str:
        return "–" if value is None else text.format(value)

    return (
        str(number),
        choice.storage_type,
        " + ".join(device or "–" for device in choice.devices),
        f"{choice.lookups_per_s:,.0f}",
        f"{choice.usd_per_month:,.0f}",
        known(choice.usd_per_million_lookups, "{:.4g}"),
        known(choice.machines, "{:g}"),
        known(choice.step_ms, "{:,.1f}"),
        " + ".join(map(bytes_text, choice.tier_bytes)) or "–",
        " + ".join(f"{rate:.1%}" for rate in choice.hit_rates) or "–",
    )


def _marker(choice: PlanChoice) -> Marker:
    if any(device and device.endswith("-memory-mode") for device in choice.devices):
        return _MARKERS["memory mode"]
    if any(kind in choice.storage_type for kind in ("SSD", "LEVELDB")):
        return _MARKERS["SSD"]
    return _MARKERS["PMEM" if "PMEM" in choice.storage_type else "DRAM"]


def _front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in both, the cheapest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front
