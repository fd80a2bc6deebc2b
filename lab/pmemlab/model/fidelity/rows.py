"""The sections and rows of the fidelity page, and of its JSON, which the report reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pmemlab.errors import LabError
from pmemlab.schema import AnyNumber, AtLeast0, Document, MaybeEmpty, Number, Positive, Text, Texts

__all__ = ["Row", "Section"]


@dataclass(frozen=True)
class Row(Document, open=True):
    """A prediction beside the truth.

    published: the truth, measured by others or on this computer. aim_percent: the limit that the
    error should stay within; None without an aim. note: a remark on the row. Raises LabError for
    figures without an error: not finite, or published 0 or less.
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
        """The relative error in percent; above 0 if the prediction is too high."""
        return (self.predicted / self.published - 1) * 100

    @property
    def reached(self) -> bool | None:
        """Whether the error is within the aim; None without an aim."""
        if self.aim_percent is None:
            return None
        # Rounded to ten digits: 115 against 100 is within 15 %, but not in floating point.
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
    """A section of rows. intro: what was compared, and how. remarks: paragraphs that explain missed
    aims and other things that the figures don't show. headline: a sentence for the page's summary,
    on figures without a row of their own.
    """

    title: Text
    intro: MaybeEmpty
    rows: AnyNumber[Row]
    remarks: Texts = ()
    headline: MaybeEmpty = ""

    @property
    def missed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.reached is False)


def _figure(value: float) -> str:
    """Formats a figure with four digits, the most that published figures have."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
