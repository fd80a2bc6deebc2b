"""The page: sections of sentences, figures and tables. The markup is in `templates`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pmemlab.report.drawing.canvas import NARROW_PX, Drawing

__all__ = ["Block", "Figure", "Fold", "Page", "Section", "Table", "render_page"]

_TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Table:
    """A table. caption: its subject. numeric: the columns that contain numbers, from 0.

    The first column names the subject of a row.
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()


@dataclass(frozen=True)
class Figure:
    """A figure, and a table of all its numbers. The table's caption is also the figure's."""

    drawing: Drawing
    table: Table


@dataclass(frozen=True)
class Fold:
    """A table that the reader can unfold, with paragraphs before and after it."""

    summary: str
    table: Table
    before: Sequence[str] = ()
    after: Sequence[str] = ()


Block = str | Table | Figure | Fold
"""A string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A section. anchor: its fragment in the page's address. missing_note: names the command that
    makes its data, if there is none; the section then has no blocks, and is only named at the
    page's end.
    """

    anchor: str
    title: str
    blocks: Sequence[Block] = ()
    missing_note: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    summary: Sequence[str]
    sections: Sequence[Section]
    remarks: Sequence[str] = field(default_factory=tuple)


def render_page(page: Page) -> str:
    """Returns the whole page: one file without scripts and external resources."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        keep_trailing_newline=True,
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["fold"] = lambda block: isinstance(block, Fold)
    return environment.get_template("page.html").render(page=page, narrow_px=NARROW_PX * 2)
