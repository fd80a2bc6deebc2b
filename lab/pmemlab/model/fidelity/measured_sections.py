"""The sections on real runs, from the file of measured results."""

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
        "figures of that access size and of that number of threads. The prediction is the "
        "bandwidth that the tier gave the threads by the clock, the median of the runs. The device "
        "is in slow motion, by the factor in the note, so that this computer's own work beside the "
        "tier hardly counts; the bandwidth is multiplied by that factor."
    ),
    "this-computer": (
        "The disk was measured by `pmemlab model measure`. A table's training with its files in "
        "memory was recorded, and its time with the files on the disk was predicted; published is "
        "the time that it took there. Both kinds of runs took turns, and the shortest of each "
        "counts."
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
    why = (_explain_by_curves, _explain_by_spread)[kind == "this-computer"]
    return Section(
        _TITLES[kind],
        f"{_INTROS[kind]} Run on {measured.when}, on {measured.computer}.",
        rows,
        (*measured.left_out, *([why(beyond, _AIMS[kind])] if beyond else [])),
    )


def _explain_by_curves(beyond: Sequence[Comparison], aim_percent: float) -> str:
    """Explains how many misses of the aim come from the interpolation, and how far the tiers are
    off.
    """
    known = [(each, each.by_curve) for each in beyond if each.by_curve]
    by_curve = [each for each, curve in known if abs(curve / each.truth - 1) * 100 > aim_percent]
    off_curve = max((abs(each.predicted / curve - 1) for each, curve in known), default=0.0)
    return (
        f"Of {len(beyond)} figures beyond the aim, {len(by_curve)} are beyond it by the remaining "
        "curve alone, without any run: neighbouring points don't show where a curve bends between "
        "few threads, or jumps, as Optane's does at its media line of 256 bytes. The tiers' "
        f"bandwidth differs from the remaining curve by {off_curve:.0%} at most."
    )


def _explain_by_spread(beyond: Sequence[Comparison], _: float) -> str:
    spreads = " and ".join(f"{each.spread_percent:.0f} %" for each in beyond)
    return (
        "A prediction uses the disk's figures, measured one kind of access at a time, and this "
        "computer's speed in the run in memory. The runs on the disk that are beyond the aim "
        f"differed among themselves by {spreads}."
    )
