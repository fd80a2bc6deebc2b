"""The results of one run of a workload."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pmemlab.workloads.evidence import TableEvidence

__all__ = ["ColdRows", "DivergedError", "FailedRunError", "LookupClock", "PlainCount", "Run"]


class FailedRunError(Exception):
    """A run that failed after it began; its figures mean nothing."""


class DivergedError(FailedRunError, ArithmeticError):
    """A loss is not finite, so the run's figures mean nothing."""


class LookupClock:
    """Counts the rows that were looked up in training, and how long that took."""

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
    """Rows of the last tier that were looked up after training, with none of their pages cached.

    wrong: the rows that differ from the reference, to the bit.
    """

    rows: int
    wrong: int


@dataclass(frozen=True)
class PlainCount:
    """Differences from a plain count of all batches, made without any table: keys that have a row
    and should not, or the other way round, and rows with another frequency.
    """

    wrong_keys: int
    wrong_frequencies: int


@dataclass(frozen=True)
class Run:
    """The result of one training run. All of it goes into JSON as it is.

    losses: each step's mean loss, exact, as `float.hex` writes it.
    loss: mean of the last 10 of them.
    auc: on the held-out rows; None if all of them are of one class, or there are none.
    samples_per_s: rows trained per second, reading of data included.
    lookups_per_s: embedding rows read in training per second spent in lookups. Like samples_per_s
        and train_seconds, the figure excludes the warm-up steps, unless there are no others.
    state_sha256: over every variable's export: keys, values, slots, frequencies, versions.
    first_step: the first trained step; above 0 if a save was restored.
    saves: checkpoints that were made in the timed steps; their time is in the rates.
    devices: names of the devices that the tiers were paced as, first tier first; None: not paced.
    step_ms: milliseconds of a timed step by part, if the run was recorded: `tier0` and so on for
        the training thread's work there, `compute` for all else.
    predictions: for each placement of tiers on devices: `devices`, `samples_per_s`, `step_ms`.
    checksums: step -> SHA-256 over a checkpoint's contents after that step: for the restored step
        and the last. A reference run has one for each step that the other run may have saved.
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
    """Returns dataclasses as dictionaries that share all other values.

    `dataclasses.asdict` copies those values, which takes seconds in an emulated machine.
    """
    if dataclasses.is_dataclass(value):
        return {name: _plain(field) for name, field in vars(value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
