"""The page: sections of sentences, figures and tables, as HTML that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from pmemlab.report.drawing.canvas import NARROW_PX, Drawing

__all__ = ["Block", "Figure", "Fold", "Page", "Section", "Table", "html"]

_STYLE: Final = Path(__file__).with_name("page.css")
# What the browser itself must refuse: any request, any script.
_LONG_CELL: Final = 30  # letters, of which a narrow column would make a tower
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Table:
    """caption: what it is of. numeric: columns whose cells are numbers, from 0.

    The first column names what a row is of.
    """

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()


@dataclass(frozen=True)
class Figure:
    """A figure, what it shows in a sentence, and all of its numbers."""

    drawing: Drawing
    caption: str
    table: Table


@dataclass(frozen=True)
class Fold:
    """A table that is shown when it is asked for, with paragraphs before and after it."""

    summary: str
    table: Table
    before: Sequence[str] = ()
    after: Sequence[str] = ()


Block = str | Table | Figure | Fold
"""Text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """anchor: its place in the page's address. lacking: what makes its data, where there is none;
    it then has no blocks, and is only named, at the page's end.
    """

    anchor: str
    title: str
    blocks: Sequence[Block] = ()
    lacking: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    summary: Sequence[str]
    sections: Sequence[Section]
    remarks: Sequence[str] = field(default_factory=tuple)


def html(page: Page) -> str:
    """The whole page: one file, without a script and without anything to be fetched."""
    style = _STYLE.read_text(encoding="utf-8").replace("NARROW_PX", str(NARROW_PX * 2))
    shown = [section for section in page.sections if section.blocks]
    links = "".join(
        f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>\n' for section in shown
    )
    remarks = "".join(f"<p>{_text(remark)}</p>\n" for remark in page.remarks)
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(page.title)}</h1>\n"
        + "".join(f"<p>{_text(sentence)}</p>\n" for sentence in page.summary)
        + f'<nav aria-label="Sections"><ul>\n{links}</ul></nav>\n</header>\n<main>\n'
        + "\n".join(map(_section, shown))
        + _lacking([section for section in page.sections if not section.blocks])
        + f"\n</main>\n<footer>\n{remarks}</footer>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    body = "\n".join(map(_block, section.blocks))
    return (
        f'<section aria-labelledby="{section.anchor}">\n'
        f'<h2 id="{section.anchor}">{escape(section.title)}</h2>\n{body}\n</section>'
    )


def _lacking(sections: Sequence[Section]) -> str:
    """One folded list of what the page has no data for."""
    if not sections:
        return ""
    items = "".join(
        f"<li>{escape(section.title)}: {_text(section.lacking)}</li>\n" for section in sections
    )
    return (
        '\n<details class="lacking">\n<summary>What else this page can show</summary>\n'
        f"<ul>\n{items}</ul>\n</details>"
    )


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{_text(block)}</p>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Fold):
        return _fold(block)
    caption = f"<figcaption>{_text(block.caption)}</figcaption>"
    return (
        f"<figure>\n{caption}\n{block.drawing.wide}\n{block.drawing.narrow}\n</figure>\n"
        + _fold(Fold(f"The numbers: {block.table.caption}", block.table))
    )


def _fold(fold: Fold) -> str:
    blocks: list[Block] = [*fold.before, fold.table, *fold.after]
    body = "\n".join(map(_block, blocks))
    return f"<details>\n<summary>{_text(fold.summary)}</summary>\n{body}\n</details>"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class(i, table, heading)}>{_text(heading)}</th>'
        for i, heading in enumerate(table.headings)
    )
    rows = "".join(f"<tr>{_cells(row, table)}</tr>\n" for row in table.rows)
    return (
        # To be scrolled by itself, by keys too, where the page is narrower than it.
        f'<div class="scrolled" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f"<table>\n<caption>{_text(table.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>"
    )


def _cells(row: Sequence[str], table: Table) -> str:
    first, *others = row
    return f'<th scope="row"{_class(0, table, first)}>{_text(first)}</th>' + "".join(
        f"<td{_class(i, table, cell)}>{_text(cell)}</td>" for i, cell in enumerate(others, start=1)
    )


def _class(column: int, table: Table, cell: str) -> str:
    if column in table.numeric:
        return " class=number"
    return " class=long" if len(cell) > _LONG_CELL else ""


def _text(text: str) -> str:
    """Text for people: what stands between backticks is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
