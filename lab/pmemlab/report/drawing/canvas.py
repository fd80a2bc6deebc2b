"""The common part of all figures: their widths, their looks, and their way to SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pmemlab.report.drawing.inline_svg import inline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "LETTER_PX",
    "NARROW_PX",
    "PALE",
    "SMALL_LETTER_PX",
    "WIDE_PX",
    "Drawing",
    "Look",
    "draw_at_both_widths",
    "draw_legend",
    "legend_height",
    "new_figure",
]

WIDE_PX: Final = 760
NARROW_PX: Final = 340
LETTER_PX: Final = 12.5
SMALL_LETTER_PX: Final = 11.5
INK: Final = "#1d2733"
PALE: Final = "#c9d1da"
_PX_PER_INCH: Final = 72.0
_LEGEND_LINE_PX: Final = 20

_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # letters stay text that can be selected and searched
    "font.family": ["DejaVu Sans"],  # wider than a browser's font, which replaces it
    "font.size": LETTER_PX,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.7,
    "hatch.linewidth": 1.0,
    "patch.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": SMALL_LETTER_PX,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": SMALL_LETTER_PX,
    "ytick.labelsize": SMALL_LETTER_PX,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    # Fixed here, so that the user's own style file has no effect.
    "text.usetex": False,
    "axes.grid": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Look:
    """The fill of a mark. The hatch distinguishes it where colours can't."""

    label: str
    fill: str
    hatch: str = ""
    edge: str = INK


@dataclass(frozen=True)
class Drawing:
    """A figure at both widths, as SVG elements for a page."""

    wide: str
    narrow: str


def draw_at_both_widths(name: str, alt: str, draw: Callable[[int], Figure]) -> Drawing:
    """Draws at both widths. name: unique in the page. alt: the figure in a sentence."""
    return Drawing(
        wide=_svg(draw, WIDE_PX, f"{name}-wide", alt),
        narrow=_svg(draw, NARROW_PX, f"{name}-narrow", alt),
    )


def new_figure(width_px: float, height_px: float) -> Figure:
    """Returns a figure in units of the page's pixels.

    REQUIRES: called by a function that `draw_at_both_widths` was given.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width_px / _PX_PER_INCH, height_px / _PX_PER_INCH), dpi=_PX_PER_INCH)


def legend_height(entries: int, columns: int) -> int:
    """Returns the pixels that a legend takes at the top of a figure."""
    return -(-entries // columns) * _LEGEND_LINE_PX + 8


def draw_legend(figure: Figure, columns: int, handles: Sequence[Artist] | None = None) -> None:
    """Draws a legend at the top. handles: its entries; None: the labelled artists of the axes."""
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderaxespad=0,
        borderpad=0.1,
        handletextpad=0.5,
        handlelength=1.9,
        handleheight=1.05,
        columnspacing=1.6,
    )


def _svg(draw: Callable[[int], Figure], width_px: int, name: str, alt: str) -> str:
    with _style(name):
        figure = draw(width_px)
        file = io.StringIO()
        nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
        figure.savefig(file, format="svg", metadata=nothing)
    width = "narrow" if width_px == NARROW_PX else "wide"
    return inline(file.getvalue(), name, alt, f"figure {width}")


@contextmanager
def _style(salt: str) -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE, "svg.hashsalt": salt}):
        yield
