"""Shows the arms' results as tables on the terminal. `pmemlab report` draws the rates."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.checkpoint_io.measure import ArmResult
from benchmarks.checkpoint_io.medium import Medium
from benchmarks.checkpoint_io.phases import Phase
from benchmarks.checkpoint_io.yardstick import Yardstick
from pmemlab.scenarios.metrics import MetricKind

__all__ = ["Report", "tables"]

_PHASES: Final[tuple[Phase, ...]] = ("serialise", "copy", "write", "sync", "verify")
WORKS: Final = "works"
_NAMES: Final = ("model", "medium", "format")


@dataclass(frozen=True)
class Report:
    """The results. kind: of every rate and time; if it is `measured`, those on paced media are
    `modelled`.
    """

    kind: MetricKind
    media: Sequence[Medium]
    yardsticks: Sequence[Yardstick]
    arms: Sequence[ArmResult]

    def kind_of(self, arm: ArmResult) -> MetricKind:
        return "modelled" if arm.device and self.kind == "measured" else self.kind

    def as_json(self) -> list[dict[str, Any]]:
        """Returns the arms for JSON."""
        return [{**arm.as_json(), "kind": self.kind_of(arm)} for arm in self.arms]

    def rate(self, bytes_per_s: float | None) -> str:
        if bytes_per_s is None:
            return "-"
        return WORKS if self.kind == "functional-only" else f"{bytes_per_s / 1e9:.2f}"

    def milliseconds(self, seconds: float | None) -> str:
        if seconds is None:
            return "-"
        return WORKS if self.kind == "functional-only" else f"{seconds * 1e3:,.0f}"


def tables(report: Report, width: int) -> str:
    """Return the tables of arms and of media, at most `width` columns wide."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def grid(headings: Sequence[str], numbers: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
        for heading in headings:
            table.add_column(heading, no_wrap=heading in _NAMES)
        for heading in numbers:
            table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
        return table

    arms = grid(
        ("model", "medium", "format"),
        ("MB", "save GB/s", "cold GB/s", "warm GB/s", "stall ms", *(f"{p} ms" for p in _PHASES)),
    )
    for arm in report.arms:
        arms.add_row(
            *(arm.model, arm.medium, arm.format, f"{arm.tensor_bytes / 1e6:.1f}"),
            *map(report.rate, (arm.save_bytes_per_s, arm.cold_bytes_per_s, arm.warm_bytes_per_s)),
            report.milliseconds(arm.stall_seconds),
            *(report.milliseconds(arm.phase_seconds(phase)) for phase in _PHASES),
        )
    media = grid(
        ("medium", "kind", "is, says the kernel", "yardstick"), ("write GB/s", "read GB/s")
    )
    by_medium = {yardstick.medium: yardstick for yardstick in report.yardsticks}
    for medium in report.media:
        yardstick = by_medium[medium.name]
        media.add_row(
            *(medium.name, medium.kind, medium.summary, yardstick.by),
            report.rate(yardstick.write_bytes_per_s),
            report.rate(yardstick.read_bytes_per_s),
        )
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    console.print(arms)
    console.print()
    console.print(media)
    lines = [line.rstrip() for line in text.getvalue().strip("\n").splitlines()]
    return "\n".join([*lines, "", *_remarks(report)])


def _remarks(report: Report) -> list[str]:
    kinds = " and ".join(dict.fromkeys(map(report.kind_of, report.arms)))
    remarks = [
        f"rates are {kinds}; saves end, and stalls too, when the medium has everything"
        if all(save.stall_seconds == save.seconds for arm in report.arms for save in arm.saves)
        else f"rates are {kinds}; saves end when the medium has everything, stalls when "
        "training's state was copied"
    ]
    paced = [medium.name for medium in report.media if medium.paced_as is not None]
    if paced:
        remarks.append(
            f"{', '.join(paced)}: this computer's memory, paced; saves and loads took the time "
            "that the device's bandwidth asks for"
        )
    for medium in report.media:
        arms = [arm for arm in report.arms if arm.medium == medium.name]
        remarks += [f"{medium.name}: {remark}" for remark in _remarks_on(medium, arms)]
    if any(arm.format == "embstore" for arm in report.arms):
        remarks.append("embstore: write is all of a save; the engine doesn't tell its parts apart")
    return remarks


def _remarks_on(medium: Medium, arms: Sequence[ArmResult]) -> list[str]:
    remarks: list[str] = []
    if medium.paced_as is not None:
        if not medium.paced_as.has_page_cache:
            remarks.append("as a dax mount, without a page cache: warm loads are cold too")
        return remarks
    if medium.facts.map_sync:
        remarks.append("a dax mount has no page cache, so that cold and warm mean the same")
    elif any(load.resident_before < 1 for arm in arms for load in arm.cached_loads):
        remarks.append("warm: some pages weren't in the page cache (resident_before in the JSON)")
    if any(arm.cold_bytes_per_s is None for arm in arms):
        remarks.append("cold -: pages stayed in memory when caches were dropped, so it was warm")
    calls = {str(arm.notes["sync_call"]) for arm in arms if "sync_call" in arm.notes}
    remarks += [f"mapped saves are made durable by {call}" for call in calls]
    return remarks
