"""Predictions beside what was published or measured."""

from __future__ import annotations

from pmemlab.report.documents import FidelityCheck, Results
from pmemlab.report.page import Section, Table

__all__ = ["fidelity"]

_TITLE = "How well the model does"


def fidelity(results: Results) -> Section:
    """A table a group of checks."""
    if not results.fidelity:
        lacking = (
            "No prediction was held against the truth here; `pmemlab fidelity --json > "
            "results/fidelity.json` does it."
        )
        return Section("fidelity", _TITLE, lacking=lacking)
    judged = [check for check in results.fidelity if check.holds is not None]
    held = sum(check.holds is True for check in judged)
    text = (
        f"Predictions beside what was published or measured: {held} of {len(judged)} are within "
        "the error that is asked for."
    )
    groups: dict[str, list[FidelityCheck]] = {}
    for check in results.fidelity:
        groups.setdefault(check.group, []).append(check)
    tables = [
        Table(
            group or "All checks",
            ("what", "predicted", "truth", "error", "asked for", "holds", "source, and why"),
            [_cells(check) for check in checks],
            numeric=(1, 2, 3, 4),
        )
        for group, checks in groups.items()
    ]
    return Section("fidelity", _TITLE, [text, *tables])


def _cells(check: FidelityCheck) -> tuple[str, ...]:
    unit = "" if check.unit == "1" else f" {check.unit}"

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:,.4g}{unit}"

    return (
        check.name,
        number(check.predicted),
        number(check.published),
        "–" if check.error is None else f"{check.error:+.1%}",
        "–" if check.limit is None else f"±{check.limit:.0%}",
        {True: "yes", False: "no", None: "–"}[check.holds],
        "; ".join(filter(None, (check.source, check.note))),
    )
