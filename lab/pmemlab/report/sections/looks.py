"""The looks of measured and modelled numbers, everywhere on the page."""

from __future__ import annotations

from typing import Final

from pmemlab.report.drawing.canvas import Look
from pmemlab.scenarios.metrics import MetricKind
from pmemlab.scenarios.rows import ResultRow

__all__ = [
    "ALL_LOOKS",
    "MEASURED",
    "PACED",
    "PREDICTED",
    "THROUGHPUT_COMMAND",
    "devices_text",
    "method_text",
    "rate_look",
]

_BLUE: Final = "#2c5f8d"
MEASURED: Final = Look("measured", _BLUE, edge=_BLUE)
PACED: Final = Look("modelled: paced", "#ffffff", "xxxx", _BLUE)
PREDICTED: Final = Look("modelled: predicted", "#ffffff", "///", _BLUE)

ALL_LOOKS: Final = (MEASURED, PACED, PREDICTED)

THROUGHPUT_COMMAND: Final = "pmemlab test scenarios/throughput"


def rate_look(kind: MetricKind, predicted: bool) -> Look:
    """Returns the look of a rate. REQUIRES: the kind is not functional-only, which has no rates."""
    assert kind != "functional-only", "what only works is never drawn"
    if kind == "measured":
        return MEASURED
    return PREDICTED if predicted else PACED


def method_text(row: ResultRow) -> str:
    """Returns in a word how the row's times were obtained. REQUIRES: the row has rates."""
    return rate_look(row.kind, row.predicted).label.rpartition(" ")[2]


def devices_text(row: ResultRow) -> str:
    """Returns the devices of the tiers, first tier first."""
    return row.devices_label if any(row.devices) else "this computer"
