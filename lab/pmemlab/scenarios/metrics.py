"""Numbers with their meaning, and the files that they are kept in.

A number is never bare: the value comes with its unit, its reliability, and its origin. Timings
under TCG show that something works, not how fast it is; their kind is `functional-only`, and
nothing here compares them with native timings.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pmemlab.machines.protocol import Accelerator, Kind

__all__ = [
    "AUC",
    "DRAM_RATIO",
    "FIRST_TIER_BYTES",
    "FIRST_TIER_SHARE",
    "HIT_RATE",
    "LOOKUPS_PER_S",
    "LOSS",
    "PREDICTED",
    "SAMPLES_PER_S",
    "STEP_MS",
    "Metric",
    "MetricKind",
    "ResultsFile",
    "commit_of",
    "read_results",
]

MetricKind = Literal["measured", "modelled", "functional-only"]

SAMPLES_PER_S: Final = "samples_per_s"
LOOKUPS_PER_S: Final = "lookups_per_s"
AUC: Final = "auc"
LOSS: Final = "loss"
HIT_RATE: Final = "hit_rate"
"""The share of the ids looked up in training whose row was in the first tier."""
FIRST_TIER_BYTES: Final = "first_tier_bytes"
"""The bytes of the rows that were in the first tier at the end."""
FIRST_TIER_SHARE: Final = "first_tier_share"
"""The share of all rows that was in the first tier at the end."""
STEP_MS: Final = "step_ms."
"""Prefix of the name of a part of a step: `compute`, `tier0`, `tier1`, ... The sum is the step."""
DRAM_RATIO: Final = "dram_ratio"
"""The ratio of a rate to that of the same workload with all rows in DRAM."""
PREDICTED: Final = "modelled_"
"""Prefix of the names of numbers predicted for tiers on `devices`. A number of kind `modelled`
without the prefix is of a paced run, whose tiers really took so long."""


@dataclass(frozen=True)
class Metric:
    """A number.

    name: the quantity, with its unit in `unit`: "samples_per_s" in "samples/s". value: the number;
    None if it is undefined, for example an AUC on one class. kind: `measured` on the named medium
    (for rates see `rate_kinds`), `modelled` from counts, or `functional-only`. machine,
    accelerator, topology, storage_type, scenario: the origin. facts: the facts of the machine's
    proof. commit: of the code that ran, "+changes" if the working tree differed from it. time: UTC,
    ISO 8601.
    devices: the device that each tier was paced as, or assumed to be on, first tier first; None for
        a tier left as it is. Empty if all were.
    not_judged: conditions not given for a program of the user's, so nothing says that it works.
    """

    name: str
    value: float | None
    unit: str
    kind: MetricKind
    scenario: str
    storage_type: str
    topology: str
    machine: Kind
    accelerator: Accelerator
    facts: Mapping[str, object]
    commit: str
    time: str
    devices: tuple[str | None, ...] = ()
    not_judged: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(MetricKind):
            kinds = ", ".join(get_args(MetricKind))
            raise ValueError(f"kind is {self.kind!r}; it must be one of {kinds}")
        if self.kind == "modelled" and not any(self.devices):
            raise ValueError(f"devices of {self.name} names none; a modelled number must")
        if self.name.startswith(PREDICTED) and self.kind != "modelled":
            raise ValueError(f"kind of {self.name} is {self.kind!r}; it must be modelled")

    @staticmethod
    def from_json(document: object) -> Metric:
        """Returns the metric of a document from `as_json`, by this version or an earlier one.

        Raises ValueError, or TypeError for a field that is missing or unknown.
        """
        if not isinstance(document, dict):
            raise ValueError(f"must be an object, not {document!r}")
        lists = {name: tuple(document.get(name, ())) for name in ("devices", "not_judged")}
        return Metric(**{**document, **lists})

    def as_json(self) -> dict[str, Any]:
        # JSON has no NaN, which the loss of a diverged run may be.
        value = None if self.value is None or not math.isfinite(self.value) else self.value
        return {**dataclasses.asdict(self), "value": value, "facts": dict(self.facts)}


def commit_of(folder: Path) -> str:
    """Returns the commit checked out in `folder`, or "unknown" if git can't tell."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


class ResultsFile:
    """A file of JSON lines for each run, named by time so that a folder lists runs in order.

    Readers see each line whole or not at all. The first line makes the file, so a run without
    results leaves none. A context manager.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        """name: from `new_name`; by default a new one."""
        self.path = folder / (name or self.new_name())
        self._descriptor: int | None = None

    @staticmethod
    def new_name() -> str:
        started = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        # The random part keeps two runs of one second apart.
        return f"{started}-{secrets.token_hex(3)}.jsonl"

    def append(self, metrics: Sequence[Metric]) -> None:
        """Appends each metric as a line. Raises OSError, which names the file, if it can't."""
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(self.path, flags, 0o644)
        lines = "".join(json.dumps(metric.as_json()) + "\n" for metric in metrics).encode()
        written = os.write(self._descriptor, lines)
        if written != len(lines):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise OSError(f"{self.path}: {written} of {len(lines)} bytes could be written")

    def close(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_results(path: Path) -> Iterator[Metric]:
    """Yields the metrics of a results file.

    Raises ValueError, which names the file and the line, for a line that is no metric.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield Metric.from_json(json.loads(line.decode()))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: not a metric: {error}") from error
