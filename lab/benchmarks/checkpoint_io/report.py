"""What the arms gave, for people: tables on the terminal and a picture of the rates."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.checkpoint_io.measure import ArmResult
from benchmarks.checkpoint_io.medium import Medium
from benchmarks.checkpoint_io.phases import Phase
from benchmarks.checkpoint_io.yardstick import Yardstick
from pmemlab.scenarios.metrics import MetricKind

__all__ = ["Report", "chart_svg", "tables"]

_PHASES: Final[tuple[Phase, ...]] = ("serialise", "copy", "write", "sync", "verify")
WORKS: Final = "works"
_NAMES: Final = ("model", "medium", "format")


@dataclass(frozen=True)
class Report:
    """kind: of every rate and time in it, but on paced media those are modelled where others are
    measured."""

    kind: MetricKind
    media: Sequence[Medium]
    yardsticks: Sequence[Yardstick]
    arms: Sequence[ArmResult]

    def kind_of(self, arm: ArmResult) -> MetricKind:
        return "modelled" if arm.device and self.kind == "measured" else self.kind

    def as_json(self) -> list[dict[str, Any]]:
        """The arms."""
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

    def grid(words: Sequence[str], numbers: Sequence[str]) -> Table:
        made = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
        for heading in words:
            made.add_column(heading, no_wrap=heading in _NAMES)
        for heading in numbers:
            made.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
        return made

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


_BAR_HEIGHT, _LABEL_WIDTH, _BAR_WIDTH, _MARGIN = 22, 300, 420, 16
_ARM, _YARDSTICK = "#3b6ea5", "#b9b9b9"
_STRIPES: Final = (
    '<defs><pattern id="modelled" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="white"/>'
    f'<path d="M0 0V6" stroke="{_ARM}" stroke-width="4"/></pattern></defs>'
)
"""What is modelled, so that black and white tells it too."""
_MODELLED: Final = "url(#modelled)"


@dataclass(frozen=True)
class _Bar:
    label: str
    bytes_per_s: float | None
    edge: str
    fill: str


def chart_svg(report: Report) -> str:
    """Return a picture of the GB/s of saves, cold loads and warm loads, by medium and format.

    Each medium's yardstick stands over its arms. What is modelled is striped. Rates that say only
    that something works have no length.
    """
    groups: list[tuple[str, list[_Bar]]] = [
        ("save", _bars(report, lambda arm: arm.save_bytes_per_s, lambda y: y.write_bytes_per_s)),
        ("cold load", _bars(report, lambda a: a.cold_bytes_per_s, lambda y: y.read_bytes_per_s)),
        ("warm load", _bars(report, lambda arm: arm.warm_bytes_per_s, None)),
    ]
    kinds = " and striped ".join(dict.fromkeys(map(report.kind_of, report.arms)))
    shapes: list[str] = []
    top = _MARGIN
    for title, bars in groups:
        shapes.append(_text(_MARGIN, top + 14, f"{title}, GB/s, {kinds}", bold=True))
        top += 26
        scale = max((bar.bytes_per_s or 0.0 for bar in bars), default=0.0) or 1.0
        for bar in bars:
            shapes += _drawn(top, bar, scale, report)
            top += _BAR_HEIGHT
        top += _MARGIN
    width = _LABEL_WIDTH + _BAR_WIDTH + 80
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'viewBox="0 0 {width} {top}" font-family="sans-serif" font-size="13">\n'
        f'{_STRIPES}\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _bars(
    report: Report,
    of_arm: Callable[[ArmResult], float | None],
    of_yardstick: Callable[[Yardstick], float] | None,
) -> list[_Bar]:
    bars: list[_Bar] = []
    for yardstick in report.yardsticks:
        if of_yardstick is not None:
            tool = yardstick.by.partition(",")[0]
            label = f"{yardstick.medium} · {tool}"
            bars.append(_Bar(label, of_yardstick(yardstick), _YARDSTICK, _YARDSTICK))
        bars += [
            _Bar(
                f"{arm.medium} · {arm.model} · {arm.format}",
                of_arm(arm),
                _ARM,
                _MODELLED if report.kind_of(arm) == "modelled" else _ARM,
            )
            for arm in report.arms
            if arm.medium == yardstick.medium
        ]
    return bars


def _drawn(top: int, bar: _Bar, scale: float, report: Report) -> list[str]:
    length = 0.0
    if bar.bytes_per_s is not None and report.kind != "functional-only":
        length = bar.bytes_per_s / scale * _BAR_WIDTH
    return [
        _text(_MARGIN, top + 14, bar.label),
        f'<rect x="{_LABEL_WIDTH}" y="{top + 3}" width="{length:.1f}" height="{_BAR_HEIGHT - 8}" '
        f'fill="{bar.fill}" stroke="{bar.edge}"/>',
        _text(_LABEL_WIDTH + length + 6, top + 14, report.rate(bar.bytes_per_s)),
    ]


def _text(x: float, y: int, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}"{weight}>{escape(text)}</text>'
