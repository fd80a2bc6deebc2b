"""Numbered points over two axes, with the numbers of the table beside the figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pmemlab.report.drawing.canvas import (
    INK,
    NARROW_PX,
    SMALL_LETTER_PX,
    Drawing,
    draw_at_both_widths,
    draw_legend,
    legend_height,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

__all__ = ["Marker", "Point", "Scale", "draw_points"]

_HEIGHT_PX: Final = 360
_TOGETHER_PX: Final = 6.0
_MARKER_PX: Final = 5.0  # from its middle to its rim


@dataclass(frozen=True)
class Marker:
    """A point's look. shape: matplotlib's name. filled: if false, the page shows through."""

    label: str
    shape: str
    filled: bool


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    number: int
    marker: Marker


@dataclass(frozen=True)
class Scale:
    """The scale of an axis. text: formats a value at a tick. limits: by default the points'."""

    label: str
    text: Callable[[float], str]
    logarithmic: bool = False
    limits: tuple[float, float] | None = None


def draw_points(
    name: str,
    alt: str,
    points: Sequence[Point],
    x: Scale,
    y: Scale,
    lines: Sequence[Sequence[Point]] = (),
) -> Drawing:
    """Draws the points, and dashed lines through some of them.

    Points that touch share one label with all their numbers. REQUIRES: there is a point; on a
    logarithmic axis all are above 0.
    """
    return draw_at_both_widths(name, alt, lambda width_px: _figure(points, x, y, lines, width_px))


def _figure(
    points: Sequence[Point],
    x: Scale,
    y: Scale,
    lines: Sequence[Sequence[Point]],
    width_px: int,
) -> Figure:
    markers = list(dict.fromkeys(point.marker for point in points))
    columns = 1 if width_px == NARROW_PX else min(len(markers), 3)
    legend_px = legend_height(len(markers), columns)
    height_px = _HEIGHT_PX + legend_px
    figure = new_figure(width_px, height_px)
    left, right, bottom, top = 58, 14, 48, legend_px + 26
    axes = figure.add_axes(
        (
            left / width_px,
            bottom / height_px,
            1 - (left + right) / width_px,
            1 - (top + bottom) / height_px,
        )
    )
    wide = width_px != NARROW_PX
    _scale_x(axes, x, [point.x for point in points], ticks=8 if wide else 4)
    _scale_y(axes, y, [point.y for point in points], ticks=6)
    axes.grid(True)
    axes.set_xlabel(x.label)
    # Stands above the axis, where a phone has room for it.
    axes.text(0, 1.03, y.label, transform=axes.transAxes, ha="left", va="bottom")
    axes.texts[-1].set_x(-left / (width_px - left - right))
    for line in lines:
        axes.plot([p.x for p in line], [p.y for p in line], color=INK, linewidth=1, dashes=(4, 3))
    for marker in markers:
        of_marker = [point for point in points if point.marker == marker]
        axes.plot(
            [point.x for point in of_marker],
            [point.y for point in of_marker],
            linestyle="none",
            marker=marker.shape,
            markersize=8,
            markeredgewidth=1.3,
            markeredgecolor=INK,
            markerfacecolor=INK if marker.filled else "white",
            label=marker.label,
            clip_on=False,
        )
    _write_numbers(axes, points)
    draw_legend(figure, columns)
    return figure


def _scale_x(axes: Axes, scale: Scale, values: Sequence[float], ticks: int) -> None:
    axes.set_xscale("log" if scale.logarithmic else "linear")
    axes.set_xlim(_limits(scale, values))
    _set_ticks(axes.xaxis, scale, ticks)


def _scale_y(axes: Axes, scale: Scale, values: Sequence[float], ticks: int) -> None:
    axes.set_yscale("log" if scale.logarithmic else "linear")
    axes.set_ylim(_limits(scale, values))
    _set_ticks(axes.yaxis, scale, ticks)


def _limits(scale: Scale, values: Sequence[float]) -> tuple[float, float]:
    if scale.limits:
        return scale.limits
    low, high = min(values), max(values)
    if scale.logarithmic:
        return low / 1.3, high * 1.3
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _set_ticks(axis: Axis, scale: Scale, ticks: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis.set_minor_locator(NullLocator())
    low, high = axis.get_view_interval()
    # Over less than a decade, a logarithmic scale may have no round number, or one.
    if scale.logarithmic and high > 10 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=ticks))
    else:
        axis.set_major_locator(MaxNLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: scale.text(value)))


def _write_numbers(axes: Axes, points: Sequence[Point]) -> None:
    """Writes its number beside each point, and one label with all numbers where points touch.

    A label that would cover another label or a point is left out; the table has the number.
    """
    together: dict[tuple[int, int], list[Point]] = {}
    at: dict[tuple[int, int], tuple[float, float]] = {}
    for point in points:
        x, y = axes.transData.transform((point.x, point.y))
        cell = (round(x / _TOGETHER_PX), round(y / _TOGETHER_PX))
        together.setdefault(cell, []).append(point)
        at.setdefault(cell, (x, y))
    taken = [_box(x, y, 2 * _MARKER_PX, 2 * _MARKER_PX) for x, y in at.values()]
    for cell, members in together.items():
        x, y = at[cell]
        text = _ranges_text(sorted(point.number for point in members))
        width = len(text) * SMALL_LETTER_PX * 0.58
        for right, up in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            box = _box(x + right * (_MARKER_PX + 1 + width / 2), y + up * 9, width, SMALL_LETTER_PX)
            if any(map(box.overlaps, taken)):
                continue
            taken.append(box)
            axes.annotate(
                text,
                (members[0].x, members[0].y),
                xytext=(right * (_MARKER_PX + 1), up * 9),
                textcoords="offset points",
                ha="left" if right > 0 else "right",
                va="center",
                fontsize=SMALL_LETTER_PX,
                annotation_clip=False,
            )
            break


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _ranges_text(numbers: Sequence[int]) -> str:
    """Returns numbers as "1–3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
