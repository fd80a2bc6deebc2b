"""Results of real runs to compare predictions with, and the page's sections on them. They are kept
in a file, since runs take wall time and no two are the same.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pmemlab.errors import LabError
from pmemlab.model.fidelity.rows import Row, Section
from pmemlab.schema import AnyNumber, AtLeast0, Count, Document, File, MaybeEmpty, Text, Texts
from pmemlab.whole_file import write_whole

__all__ = [
    "MEASURED_FILE",
    "Comparison",
    "Kind",
    "Measured",
    "compare_runs",
    "measured_now",
    "measured_sections",
    "read_measured",
    "store_measurement",
]

MEASURED_FILE = Path(__file__).parents[3] / "FIDELITY-measured.json"
Kind = Literal["paced", "this-computer"]

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


@dataclass(frozen=True)
class Comparison(Document):
    """A prediction and the measured or published truth. repetitions: the number of runs.
    spread_percent: the difference between the largest and the smallest run, relative to the median.
    note: a remark. by_curve: the prediction of a paced device's curve alone.
    """

    name: Text
    truth: AtLeast0
    predicted: AtLeast0
    unit: MaybeEmpty
    repetitions: Count
    spread_percent: AtLeast0
    note: MaybeEmpty = ""
    by_curve: AtLeast0 | None = None


def compare_runs(
    name: str, took_s: Sequence[float], predicted_s: Sequence[float], note: str
) -> Comparison:
    """Compares runs that took turns by the shortest of each: other work on the computer only adds
    time.
    """
    return Comparison(
        name,
        min(took_s) * 1e3,
        min(predicted_s) * 1e3,
        "ms",
        len(took_s),
        (max(took_s) - min(took_s)) / statistics.median(took_s) * 100,
        note,
    )


@dataclass(frozen=True)
class Measured(Document):
    """The results of one run of the command. left_out: what wasn't run, and why."""

    when: Text
    computer: Text
    comparisons: AnyNumber[Comparison]
    left_out: Texts


@dataclass(frozen=True)
class _StoredMeasurements(Document, aliases={"this_computer": "this-computer"}):
    paced: Measured | None = None
    this_computer: Measured | None = None


def measured_now(comparisons: Sequence[Comparison], left_out: Sequence[str]) -> Measured:
    """Returns results with the date and a description of this computer."""
    # Imported late: the command's options need no engine.
    from pmemlab.model.devices.measuring.target import cpu_name

    system = os.uname()
    computer = f"{cpu_name()}, {os.cpu_count()} CPUs, {system.sysname} {system.release}"
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Measured(when, computer, tuple(comparisons), tuple(left_out))


def store_measurement(path: Path, kind: Kind, measured: Measured) -> None:
    """Replaces the file's results of this kind. Raises LabError."""
    document = {kind: asdict(known) for kind, known in read_measured(path).items()}
    document[kind] = asdict(measured)
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise LabError(f"{path}: can't be written: {error.strerror}") from error


def read_measured(path: Path) -> dict[Kind, Measured]:
    """Reads the results; empty without a file. Raises LabError, which names file and field."""
    if not path.exists():
        return {}
    stored = File.from_json(path, LabError).read(_StoredMeasurements)
    kinds: dict[Kind, Measured | None] = {
        "paced": stored.paced,
        "this-computer": stored.this_computer,
    }
    return {kind: measured for kind, measured in kinds.items() if measured is not None}


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
