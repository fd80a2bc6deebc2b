"""Horizontal bars in groups, each bar with its value, in one part or several."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pmemlab.report.drawing.canvas import (
    LETTER_PX,
    NARROW_PX,
    PALE,
    SMALL_LETTER_PX,
    Drawing,
    Look,
    draw_at_both_widths,
    draw_legend,
    legend_height,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

__all__ = ["Bar", "BarGroup", "Part", "draw_bars"]

_LINE_PX: Final = 16
_BAR_PX: Final = 15
_GAP_PX: Final = 9
_GROUP_GAP_PX: Final = 14
_LABEL_SHARE: Final = 0.42  # of a wide figure; a narrow one has labels above the bars
_VALUE_PX: Final = 78
_LETTER_WIDTH: Final = 0.56  # of a letter's size, on average
_BOLD_WIDTH: Final = 0.68
_LEGEND_HANDLE_PX: Final = 46


@dataclass(frozen=True)
class Part:
    """A part of a bar: its length and its look."""

    value: float
    look: Look


@dataclass(frozen=True)
class Bar:
    """A bar. text: the value, written at the bar's end."""

    label: str
    parts: Sequence[Part]
    text: str


@dataclass(frozen=True)
class BarGroup:
    """Bars under a heading. All bars of a figure share one scale."""

    heading: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class _Row:
    """A bar and the lines of its label, each with its distance from the figure's top."""

    bar: Bar
    lines: Sequence[str]
    label_top: float
    bar_top: float


def draw_bars(name: str, alt: str, groups: Sequence[BarGroup], looks: Sequence[Look]) -> Drawing:
    """Draws the groups, one below the other, under a legend of the looks that occur.

    REQUIRES: there is a bar, and none has a negative part.
    """
    used = {part.look for group in groups for bar in group.bars for part in bar.parts}
    legend = [look for look in looks if look in used]
    return draw_at_both_widths(name, alt, lambda width_px: _figure(groups, legend, width_px))


def _figure(groups: Sequence[BarGroup], looks: Sequence[Look], width_px: int) -> Figure:
    has_labels_beside = width_px != NARROW_PX
    label_px = width_px * _LABEL_SHARE if has_labels_beside else width_px
    letters = int((label_px - 12) / (SMALL_LETTER_PX * _LETTER_WIDTH))
    longest = max(len(look.label) for look in looks) * SMALL_LETTER_PX * _LETTER_WIDTH
    columns = max(1, int(width_px / (_LEGEND_HANDLE_PX + longest)))
    top = float(legend_height(len(looks), columns))
    headings: list[tuple[str, float]] = []
    rows: list[_Row] = []
    for group in groups:
        top += _GROUP_GAP_PX if headings else 4
        for line in textwrap.wrap(group.heading, int(width_px / (LETTER_PX * _BOLD_WIDTH))):
            headings.append((line, top))
            top += _LINE_PX
        top += 6
        for bar in group.bars:
            lines = textwrap.wrap(bar.label, letters, break_on_hyphens=False) or [""]
            label_height = _LINE_PX * len(lines)
            if has_labels_beside:
                middle = top + max(label_height, _BAR_PX) / 2
                rows.append(_Row(bar, lines, middle - label_height / 2, middle - _BAR_PX / 2))
                top += max(label_height, _BAR_PX) + _GAP_PX
            else:
                rows.append(_Row(bar, lines, top, top + label_height))
                top += label_height + _BAR_PX + _GAP_PX
    figure = new_figure(width_px, top)
    draw_legend(figure, columns, [_legend_patch(look) for look in looks])
    for heading, at in headings:
        figure.text(0, 1 - (at + _LINE_PX / 2) / top, heading, fontweight="bold", va="center")
    left_px = label_px if has_labels_beside else 1
    axes = figure.add_axes((left_px / width_px, 0, 1 - (left_px + _VALUE_PX) / width_px, 1))
    _draw_rows(axes, rows, top, has_labels_beside)
    return figure


def _legend_patch(look: Look) -> Patch:
    from matplotlib.patches import Patch

    return Patch(facecolor=look.fill, edgecolor=look.edge, hatch=look.hatch, label=look.label)


def _draw_rows(axes: Axes, rows: Sequence[_Row], height_px: float, has_labels_beside: bool) -> None:
    axes.set_axis_off()
    axes.set_ylim(height_px, 0)
    longest = max(sum(part.value for part in row.bar.parts) for row in rows)
    axes.set_xlim(0, longest or 1)
    for row in rows:
        middle = row.bar_top + _BAR_PX / 2
        for i, line in enumerate(row.lines):
            axes.annotate(
                line,
                (0, row.label_top + _LINE_PX * (i + 0.5)),
                xytext=(-10 if has_labels_beside else 0, 0),
                textcoords="offset points",
                ha="right" if has_labels_beside else "left",
                va="center",
                fontsize=SMALL_LETTER_PX,
                annotation_clip=False,
            )
        start = 0.0
        for part in row.bar.parts:
            axes.barh(
                middle,
                part.value,
                left=start,
                height=_BAR_PX,
                color=part.look.fill,
                edgecolor=part.look.edge,
                hatch=part.look.hatch,
                clip_on=False,
            )
            start += part.value
        axes.annotate(
            row.bar.text,
            (start, middle),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL_LETTER_PX,
            fontweight="bold",
            annotation_clip=False,
        )
    first, last = rows[0].bar_top, rows[-1].bar_top + _BAR_PX
    if has_labels_beside:
        axes.plot([0, 0], [first - 4, last + 4], color=PALE, linewidth=1, zorder=0, clip_on=False)
