"""What a workload brings back of one run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pmemlab.workloads.evidence import TableEvidence

__all__ = ["ColdRows", "DivergedError", "FailedRunError", "LookupClock", "PlainCount", "Run"]


class FailedRunError(Exception):
    """A run that began well, and whose figures say nothing."""


class DivergedError(FailedRunError, ArithmeticError):
    """A loss is no finite number any more, so the run says nothing."""


class LookupClock:
    """How many rows were looked up in training, and how long that took."""

    def __init__(self) -> None:
        self.rows = 0
        self.seconds = 0.0

    def reset(self) -> None:
        self.rows, self.seconds = 0, 0.0

    @property
    def per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class ColdRows:
    """Rows of the last tier that were looked up after training, when no page of them was cached.

    wrong: those that weren't, to the bit, what the reference has.
    """

    rows: int
    wrong: int


@dataclass(frozen=True)
class PlainCount:
    """What differs from a count of all batches without any table: keys that have a row and should
    not, or the other way round, and rows with another frequency."""

    wrong_keys: int
    wrong_frequencies: int


@dataclass(frozen=True)
class Run:
    """One training run. Everything in it goes into JSON as it is.

    losses: each step's mean loss, exact, as `float.hex` writes it.
    loss: mean of the last 10 of them.
    auc: on the held-out rows; None where they are all of one class, or there are none.
    samples_per_s: rows trained per second, reading of data included.
    lookups_per_s: embedding rows read in training per second spent in lookups. Like samples_per_s
        and train_seconds it leaves out the first steps, which warm up, where there are others.
    state_sha256: over every variable's export: keys, values, slots, frequencies, versions.
    first_step: the first that was trained, where a save was restored.
    saves: checkpoints that were made in the timed steps; their time is in the rates.
    devices: names of those that the tiers were paced as, first tier first; None: not paced.
    step_ms: milliseconds of a timed step by part, where it was recorded: `tier0` and so on for what
        the training thread did there, `compute` for all else.
    predictions: of each placement of tiers on devices: `devices`, `samples_per_s`, `step_ms`.
    checksums: by step, a SHA-256 of all that a checkpoint after it holds: of what was restored, and
        of the end. Of a run that is compared with: at each step that the other may have kept.
    """

    storage_type: str
    steps: int
    samples: int
    losses: list[str]
    loss: float
    train_seconds: float
    samples_per_s: float
    lookups_per_s: float
    state_sha256: str
    tables: list[TableEvidence]
    first_step: int = 0
    saves: int = 0
    auc: float | None = None
    held_out_rows: int = 0
    cold: ColdRows | None = None
    plain: PlainCount | None = None
    checksums: dict[int, str] = field(default_factory=dict)
    devices: list[str | None] = field(default_factory=list)
    step_ms: dict[str, float] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(self)
        return plain


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, which share all other values.

    `dataclasses.asdict` copies those, for seconds in an emulated machine.
    """
    if dataclasses.is_dataclass(value):
        return {name: _plain(field) for name, field in vars(value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
