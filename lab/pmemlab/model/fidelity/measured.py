"""Results of real runs to compare predictions with. They are kept in a file, which the page shows,
since runs take wall time and no two are the same.
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
from pmemlab.schema import AnyNumber, AtLeast0, Count, Document, File, MaybeEmpty, Text, Texts
from pmemlab.whole_file import write_whole

__all__ = [
    "MEASURED_FILE",
    "Comparison",
    "Kind",
    "Measured",
    "compare_runs",
    "measured_now",
    "read_measured",
    "store_measurement",
]

MEASURED_FILE = Path(__file__).parents[3] / "FIDELITY-measured.json"
Kind = Literal["paced", "this-computer"]


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
