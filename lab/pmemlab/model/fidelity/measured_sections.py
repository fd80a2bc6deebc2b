"""The sections on what was really run, as the file of it has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pmemlab.model.fidelity.measured import Comparison, Kind, Measured, read_measured
from pmemlab.model.fidelity.rows import Row, Section

__all__ = ["measured_sections"]

_TITLES: dict[Kind, str] = {
    "paced": "Bandwidth through paced tiers",
    "this-computer": "This computer's disk, predicted from a run in memory",
}
_INTROS: dict[Kind, str] = {
    "paced": (
        "Threads look up rows of a table whose tier is paced by a device; its file lacks all "
        "figures of that access size and of that number of threads. Predicted is what the tier "
        "gave them by the clock. The device is in slow motion, as many times as the note says, so "
        "that this computer's own work beside the tier hardly counts; what they got is multiplied "
        "by that; medians."
    ),
    "this-computer": (
        "The disk was measured by `pmemlab model measure`. A table's training with its files in "
        "memory was recorded, and predicted to take so long with them on the disk; published is "
        "what it took there. Both took turns, and the least of each counts."
    ),
}
_AIMS: dict[Kind, float] = {"paced": 10.0, "this-computer": 15.0}


def measured_sections(path: Path) -> tuple[Section, ...]:
    """Returns a section for each kind of result in the file; none if there is no file.

    Raises LabError.
    """
    return tuple(_section(kind, measured) for kind, measured in read_measured(path).items())


def _section(kind: Kind, measured: Measured) -> Section:
    rows = tuple(
        Row(
            each.name,
            each.truth,
            each.predicted,
            each.unit,
            _AIMS[kind],
            f"{each.note}; spread {each.spread_percent:.0f} % of {each.repetitions} runs",
        )
        for each in measured.comparisons
    )
    beyond = [
        each for each, row in zip(measured.comparisons, rows, strict=True) if row.reached is False
    ]
    why = (_by_their_curves, _by_their_spread)[kind == "this-computer"]
    return Section(
        _TITLES[kind],
        f"{_INTROS[kind]} Run on {measured.when}, on {measured.computer}.",
        rows,
        (*measured.left_out, *([why(beyond, _AIMS[kind])] if beyond else [])),
    )


def _by_their_curves(beyond: Sequence[Comparison], aim_percent: float) -> str:
    """How much of what is beyond the aim is the interpolation's, how much the tier's."""
    known = [(each, each.by_curve) for each in beyond if each.by_curve]
    by_curve = [each for each, curve in known if abs(curve / each.truth - 1) * 100 > aim_percent]
    off_curve = max((abs(each.predicted / curve - 1) for each, curve in known), default=0.0)
    return (
        f"Of {len(beyond)} beyond the aim, {len(by_curve)} are foretold so by what is left of the "
        "curve, without any run: neighbours don't tell where a curve bends between few threads, or "
        "jumps, as Optane's does at its media line of 256 bytes. What their tiers gave differs "
        f"from what is left of the curve by {off_curve:.0%} at most."
    )


def _by_their_spread(beyond: Sequence[Comparison], _: float) -> str:
    spreads = " and ".join(f"{each.spread_percent:.0f} %" for each in beyond)
    return (
        "A prediction knows the disk as it was measured, one kind of access at a time, and this "
        "computer as the run in memory found it. Runs on the disk that are beyond the aim differed "
        f"among themselves by {spreads}."
    )
