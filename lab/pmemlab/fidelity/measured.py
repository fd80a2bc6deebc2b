"""What was really run to hold predictions against: kept in a file, since it takes wall time and no
two runs are the same. The page shows what the file has.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pmemlab.errors import LabError

__all__ = ["KEPT", "Comparison", "Kind", "Measured", "keep_measured", "read_measured", "taken_now"]

KEPT = Path(__file__).parents[2] / "FIDELITY-measured.json"
Kind = Literal["paced", "this-computer"]


@dataclass(frozen=True)
class Comparison:
    """truth: what the prediction is held against. repetitions: of which the figures are.
    spread_percent: from the least to the most of what was run, of its median. note: what to know.
    by_curve: what a paced device's curve says by itself.
    """

    name: str
    truth: float
    predicted: float
    unit: str
    repetitions: int
    spread_percent: float
    note: str = ""
    by_curve: float | None = None


@dataclass(frozen=True)
class Measured:
    """comparisons: of one run of the command. left_out: what wasn't run, and why."""

    when: str
    computer: str
    comparisons: tuple[Comparison, ...]
    left_out: tuple[str, ...]


def taken_now(comparisons: Sequence[Comparison], left_out: Sequence[str]) -> Measured:
    """With the date, and what this computer is."""
    # Only here: the command's options do without the engine.
    from pmemlab.devices.measuring.target import cpu_name

    system = os.uname()
    computer = f"{cpu_name()}, {os.cpu_count()} CPUs, {system.sysname} {system.release}"
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Measured(when, computer, tuple(comparisons), tuple(left_out))


def keep_measured(path: Path, kind: Kind, measured: Measured) -> None:
    """In the place of what the file had of this kind. Raises LabError."""
    document = {kind: asdict(known) for kind, known in read_measured(path).items()}
    document[kind] = asdict(measured)
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise LabError(f"{path}: can't be written: {error.strerror}") from error


def read_measured(path: Path) -> dict[Kind, Measured]:
    """Nothing where there's no file. Raises LabError, which names file and field."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LabError(f"{path}: can't be read: {error}") from error
    kinds: tuple[Kind, ...] = ("paced", "this-computer")
    if not isinstance(document, dict) or not set(document) <= set(kinds):
        raise LabError(f"{path}: must have {' and '.join(kinds)} alone; delete it and measure anew")
    return {kind: _read(f"{path}: {kind}", document[kind]) for kind in kinds if kind in document}


def _read(where: str, fields: Any) -> Measured:
    try:
        measured = Measured(**fields)
        comparisons = tuple(Comparison(**each) for each in measured.comparisons)  # type: ignore[arg-type]
    except TypeError as error:
        raise LabError(f"{where}: {error}; measure it anew") from error
    for i, each in enumerate(comparisons):
        figures = {name: getattr(each, name) for name in ("truth", "predicted", "spread_percent")}
        if each.by_curve is not None:
            figures["by_curve"] = each.by_curve
        for name, value in figures.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise LabError(f"{where}.comparisons[{i}].{name}: must be a figure, not {value!r}")
    return Measured(measured.when, measured.computer, comparisons, tuple(measured.left_out))
