"""What a section of the fidelity page is, and of the JSON of it that the report reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pmemlab.errors import LabError
from pmemlab.schema import AtLeast0, Document, Many, MaybeEmpty, Number, Positive, Text, Texts

__all__ = ["Row", "Section"]


@dataclass(frozen=True)
class Row(Document, open=True):
    """A prediction beside the truth.

    published: the truth, by someone else's measurement or this computer's. aim_percent: the error
    that it should stay within; None where nothing was aimed at. note: what to know of this row.
    Raises LabError for figures that have no error: not finite, or published 0 or less.
    """

    name: Text
    published: Positive
    predicted: AtLeast0
    unit: MaybeEmpty = ""
    aim_percent: Number | None = None
    note: MaybeEmpty = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.published) and self.published > 0):
            raise LabError(f"{self.name}: published {self.published}: must be above 0")
        if not math.isfinite(self.predicted):
            raise LabError(f"{self.name}: predicted {self.predicted}: must be a number")

    @property
    def error_percent(self) -> float:
        """Above 0 where the prediction is too high."""
        return (self.predicted / self.published - 1) * 100

    @property
    def reached(self) -> bool | None:
        """Whether the error is within the aim; None where there is none."""
        if self.aim_percent is None:
            return None
        # Ten digits: 115 of 100 is within 15 %, which floats would deny.
        return round(abs(self.error_percent), 10) <= self.aim_percent

    @property
    def cells(self) -> tuple[str, ...]:
        """Name, truth, prediction, unit, error, aim, whether it was reached, and note."""
        return (
            self.name,
            _figure(self.published),
            _figure(self.predicted),
            self.unit,
            f"{self.error_percent:+.1f} %",
            "" if self.aim_percent is None else f"±{self.aim_percent:g} %",
            {True: "yes", False: "no", None: ""}[self.reached],
            self.note,
        )


@dataclass(frozen=True)
class Section(Document, extra=("intro",), context=("intro",), open=True):
    """Rows of one kind. intro: what was compared, and how. remarks: why aims weren't reached, and
    what else the figures don't say by themselves; one a paragraph. headline: what the page says
    first of figures that have no row of their own.
    """

    title: Text
    intro: MaybeEmpty
    rows: Many[Row]
    remarks: Texts = ()
    headline: MaybeEmpty = ""

    @property
    def missed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.reached is False)


def _figure(value: float) -> str:
    """Four digits, as published figures have at most."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
