"""The section on predictions beside published or measured figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pmemlab.model.fidelity.rows import Row
from pmemlab.model.fidelity.rows import Section as FidelitySection
from pmemlab.report.documents import Results
from pmemlab.report.page import Block, Fold, Section, Table

__all__ = ["fidelity"]

_TITLE = "How well the model does"
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


def fidelity(results: Results) -> Section:
    """Returns the predictions that miss their aim, then a table for each kind of prediction."""
    rows = [row for section in results.fidelity for row in section.rows]
    if not rows:
        missing_note = (
            "No prediction was held against the truth here; `pmemlab model fidelity --json "
            "results/fidelity.json` does it."
        )
        return Section("fidelity", _TITLE, missing_note=missing_note)
    blocks: list[Block] = [
        f"Predictions beside what was published or measured: {_aims_text(rows)}."
    ]
    beyond = [row for row in rows if row.reached is False]
    if beyond:
        blocks.append(_table("Beyond their aim", beyond))
    blocks += map(_fold, results.fidelity)
    return Section("fidelity", _TITLE, blocks)


def _aims_text(rows: Sequence[Row]) -> str:
    aimed = [row for row in rows if row.reached is not None]
    if not aimed:
        return f"{len(rows)} without an aim"
    return f"{sum(row.reached is True for row in aimed)} of {len(aimed)} within their aim"


def _fold(section: FidelitySection) -> Fold:
    # The intro is written for a page of the documents, whose links lead nowhere from here.
    before = [_LINK.sub(r"\1", section.intro)] if section.intro else []
    return Fold(
        f"{section.title}: {_aims_text(section.rows)}",
        _table(section.title, section.rows),
        before,
        [_LINK.sub(r"\1", remark) for remark in section.remarks],
    )


def _table(caption: str, rows: Sequence[Row]) -> Table:
    return Table(
        caption,
        ("what", "truth", "predicted", "unit", "error", "aim", "within it", "note"),
        [row.cells for row in rows],
        numeric=(1, 2, 4, 5),
    )
