"""Renders the fidelity page for a terminal and for the docs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pmemlab.model.fidelity.rows import Section

__all__ = ["markdown", "print_sections", "summary"]

_TITLES = ("", "published", "predicted", "unit", "error", "aim", "reached", "note")
_RIGHT = ("published", "predicted", "error", "aim")
_PREFACE = """\
# How well the predictions do

Written by `make fidelity`; not by hand. Each row has what was published or measured, what this lab
predicts, and the error of the prediction. A row without an aim is for information only.
"""


def summary(sections: Sequence[Section]) -> str:
    aimed = [row for section in sections for row in section.rows if row.aim_percent is not None]
    missed = [row for section in sections for row in section.missed]
    within = f"{len(aimed) - len(missed)} of {len(aimed)} figures are within their aim."
    return " ".join([within, *(section.headline for section in sections if section.headline)])


def markdown(sections: Sequence[Section]) -> str:
    """Returns the page as Markdown, with a newline at the end."""
    parts = [_PREFACE, summary(sections) + "\n"]
    for section in sections:
        parts.append(f"## {section.title}\n\n{section.intro}\n")
        lines = ["| " + " | ".join(_TITLES) + " |"]
        rules = ("---:" if title in _RIGHT else "---" for title in _TITLES)
        lines.append("|" + "|".join(rules) + "|")
        for row in section.rows:
            cells = (cell.replace("|", "\\|") for cell in row.cells)
            line = "| " + " | ".join(cells) + " |"
            lines.append(line.replace("| no |", "| **no** |"))
        parts.append("\n".join(lines) + "\n")
        parts.extend(f"{remark}\n" for remark in section.remarks)
    return "\n".join(parts)


def print_sections(console: Console, sections: Sequence[Section]) -> None:
    for section in sections:
        table = Table(title=escape(section.title), title_justify="left")
        for title in _TITLES:
            table.add_column(title, justify="right" if title in _RIGHT else "left")
        for row in section.rows:
            style = "bold red" if row.reached is False else None
            table.add_row(*(escape(cell) for cell in row.cells), style=style)
        console.print(table)
        for remark in section.remarks:
            console.print(remark, markup=False)
        console.print()
    console.print(summary(sections))
