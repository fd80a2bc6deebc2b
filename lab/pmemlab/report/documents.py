"""What a folder of results may hold, and how it is read.

`*.jsonl`: metrics, one JSON object a line (see `pmemlab.scenarios.metrics`); `make scenarios`
writes them.

`*.json`: one object, told apart by its field `document`, or by `workload` for checkpoint_io.
Numbers that aren't known may be null or left out. Fields that aren't named here are left alone.

- `"document": "plan"`, by `pmemlab plan --json`. `arguments`: an object, what was asked for.
  `choices`: a list of objects, the best first: `storage_type`; `devices`, a name a tier;
  `lookups_per_s`, `usd_per_month`; and, where they are known, `usd_per_million_lookups`,
  `machines`, `step_ms`, `tier_bytes` and `hit_rates` (lists, a number a tier; a hit rate is of all
  lookups).
- `"document": "fidelity"`, by `pmemlab fidelity --json`. `checks`: a list of objects: `name`, what
  was predicted; `predicted` and `published`, in `unit`; `limit`, the largest relative error that is
  asked for; and, where there is one, `group`, `source` and `note`, why a limit isn't met.
- `"workload": "checkpoint_io"`, by `python -m pmemlab.workloads.checkpoint_io --json`. `kind`, as a
  metric's; `arms`: a list of objects: `model`, `medium`, `format`, `save_bytes_per_s`,
  `cold_bytes_per_s`, `warm_bytes_per_s`, and, of a paced medium, `device` and `kind`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from pmemlab.errors import LabError
from pmemlab.scenarios.metrics import MetricKind, read_results
from pmemlab.scenarios.rows import ResultRow, RowKey, rows_by_key
from pmemlab.yaml_fields import Fields, is_number

__all__ = [
    "CheckpointArm",
    "FidelityCheck",
    "Plan",
    "PlanChoice",
    "Results",
    "ResultsError",
    "read_folder",
]


class ResultsError(LabError, ValueError):
    """A folder of results, or a file in it, can't be read; the message names file and line or
    field."""


@dataclass(frozen=True)
class PlanChoice:
    """One way to store the tables. hit_rates: of all lookups, the share that each tier answers."""

    storage_type: str
    devices: tuple[str | None, ...]
    lookups_per_s: float
    usd_per_month: float
    usd_per_million_lookups: float | None
    machines: float | None
    step_ms: float | None
    tier_bytes: tuple[float, ...]
    hit_rates: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """arguments: what was asked for. choices: the best first."""

    file: str
    arguments: Mapping[str, Any]
    choices: tuple[PlanChoice, ...]


@dataclass(frozen=True)
class FidelityCheck:
    """A prediction beside what was published or measured. limit: of the relative error."""

    name: str
    predicted: float | None
    published: float | None
    unit: str
    limit: float | None
    group: str
    source: str
    note: str

    @property
    def error(self) -> float | None:
        """Relative to the published number, with its sign; None where either is unknown."""
        if self.predicted is None or not self.published:
            return None
        return self.predicted / self.published - 1

    @property
    def holds(self) -> bool | None:
        """Whether the error is within the limit; None where that can't be said."""
        if self.error is None or self.limit is None:
            return None
        return abs(self.error) <= self.limit


@dataclass(frozen=True)
class CheckpointArm:
    """Rates of one format on one medium; None where they are unknown. device: it was paced as."""

    model: str
    medium: str
    format: str
    device: str | None
    kind: MetricKind
    save_bytes_per_s: float | None
    cold_bytes_per_s: float | None
    warm_bytes_per_s: float | None


@dataclass(frozen=True)
class Results:
    """What a folder holds. rows: the newest of each run. left_out: files that are no results."""

    folder: Path
    rows: Sequence[ResultRow] = ()
    plans: Sequence[Plan] = ()
    fidelity: Sequence[FidelityCheck] = ()
    checkpoints: Sequence[CheckpointArm] = ()
    left_out: Sequence[str] = field(default_factory=tuple)


def read_folder(folder: Path) -> Results:
    """Read every file of the folder; of what is there twice, the newest counts.

    Files are taken in the order of their names, which for metrics is that of time.

    Raises ResultsError.
    """
    if not folder.is_dir():
        problem = "is no folder" if folder.exists() else "isn't there"
        raise ResultsError(f"{folder}: {problem}; {_MAKES_RESULTS}")
    lines = sorted(folder.glob("*.jsonl"))
    documents = sorted(folder.glob("*.json"))
    if not lines and not documents:
        raise ResultsError(
            f"{folder}: has no results, which are *.jsonl or *.json; {_MAKES_RESULTS}"
        )
    rows: dict[RowKey, ResultRow] = {}
    for path in lines:
        try:
            rows.update(rows_by_key(read_results(path)))
        except (OSError, ValueError) as error:
            raise ResultsError(f"{error}") from error
    plans: list[Plan] = []
    fidelity: dict[tuple[str, str], FidelityCheck] = {}
    arms: dict[tuple[str, str, str, str | None], CheckpointArm] = {}
    left_out: list[str] = []
    for path in documents:
        fields = _object(path)
        kind = fields.take("document") or fields.take("workload")
        if kind == "plan":
            plans.append(_plan(path, fields))
        elif kind == "fidelity":
            fidelity.update({(check.group, check.name): check for check in _checks(fields)})
        elif kind == "checkpoint_io":
            arms.update({(a.model, a.medium, a.format, a.device): a for a in _arms(fields)})
        else:
            left_out.append(path.name)
    return Results(
        folder=folder,
        rows=list(rows.values()),
        plans=plans,
        fidelity=list(fidelity.values()),
        checkpoints=list(arms.values()),
        left_out=left_out,
    )


_MAKES_RESULTS: Final = "`make scenarios` makes results"


def _object(path: Path) -> Fields:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: can't be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    return Fields(path, document, ResultsError)


def _plan(path: Path, fields: Fields) -> Plan:
    choices = tuple(
        PlanChoice(
            storage_type=choice.text("storage_type"),
            devices=_devices(choice),
            lookups_per_s=_above_0(choice, "lookups_per_s"),
            usd_per_month=_above_0(choice, "usd_per_month"),
            usd_per_million_lookups=_number(choice, "usd_per_million_lookups"),
            machines=_number(choice, "machines"),
            step_ms=_number(choice, "step_ms"),
            tier_bytes=_numbers(choice, "tier_bytes"),
            hit_rates=_numbers(choice, "hit_rates"),
        )
        for choice in _sections(fields, "choices")
    )
    return Plan(path.name, fields.mapping("arguments"), choices)


def _checks(fields: Fields) -> list[FidelityCheck]:
    return [
        FidelityCheck(
            name=check.text("name"),
            predicted=_number(check, "predicted"),
            published=_number(check, "published"),
            unit=check.text("unit"),
            limit=_number(check, "limit"),
            group=_text(check, "group"),
            source=_text(check, "source"),
            note=_text(check, "note"),
        )
        for check in _sections(fields, "checks")
    ]


def _arms(fields: Fields) -> list[CheckpointArm]:
    of_all = _kind(fields, "measured")
    return [
        CheckpointArm(
            model=arm.text("model"),
            medium=arm.text("medium"),
            format=arm.text("format"),
            device=_text(arm, "device") or None,
            kind=_kind(arm, of_all),
            save_bytes_per_s=_number(arm, "save_bytes_per_s"),
            cold_bytes_per_s=_number(arm, "cold_bytes_per_s"),
            warm_bytes_per_s=_number(arm, "warm_bytes_per_s"),
        )
        for arm in _sections(fields, "arms")
    ]


def _sections(fields: Fields, name: str) -> list[Fields]:
    sections = fields.sections(name)
    if sections is None:
        raise fields.error(name, "is missing")
    return sections


def _kind(fields: Fields, default: MetricKind) -> MetricKind:
    kind = fields.take("kind")
    if kind is None:
        return default
    for known in get_args(MetricKind):
        if kind == known:
            return known  # type: ignore[no-any-return]
    raise fields.error("kind", f"must be one of {', '.join(get_args(MetricKind))}, not {kind!r}")


def _devices(fields: Fields) -> tuple[str | None, ...]:
    value = fields.take("devices", required=True)
    if not isinstance(value, list) or not all(isinstance(x, str) or x is None for x in value):
        raise fields.error("devices", f"must be a list of names, not {value!r}")
    return tuple(value)


def _text(fields: Fields, name: str) -> str:
    value = fields.take(name)
    if value is not None and not isinstance(value, str):
        raise fields.error(name, f"must be text, not {value!r}")
    return value or ""


def _number(fields: Fields, name: str) -> float | None:
    value = fields.take(name)
    if value is not None and not is_number(value):
        raise fields.error(name, f"must be a number or null, not {value!r}")
    return None if value is None else float(value)


def _above_0(fields: Fields, name: str) -> float:
    value = fields.take(name, required=True)
    if not is_number(value) or value <= 0:
        raise fields.error(name, f"must be a number above 0, not {value!r}")
    return float(value)


def _numbers(fields: Fields, name: str) -> tuple[float, ...]:
    value = fields.take(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(map(is_number, value)):
        raise fields.error(name, f"must be a list of numbers, not {value!r}")
    return tuple(value)
