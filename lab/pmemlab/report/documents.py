"""What a folder of results may hold, and how it is read.

`*.jsonl`: metrics, one JSON object a line (see `pmemlab.scenarios.metrics`); `make scenarios`
writes them.

`*.json`: one object, told apart by the field that it alone has. Numbers that aren't known may be
null or left out; fields that aren't named here are left alone.

- `plans`, by `pmemlab plan --json`: a list of objects, the best first: `storage_type`; `tiers`, a
  list of objects with `device`, `rows`, `bytes` and `hit_rate` (of all lookups); `lookups_per_s`,
  of one machine at most; and where they are known `machine` (a name), `machines` (how many),
  `step_ms`, `usd_per_month`, `usd_per_million_lookups` and `why_unpriced`. Beside it `workload`, an
  object: what was asked for.
- `sections`, by `pmemlab fidelity --json`: a list of objects: `title`, `intro`, `remarks` (a list
  of texts) and `rows`, a list of objects: `name`; `published` and `predicted`, in `unit`; and where
  there is one `aim_percent`, the error to stay within, and `note`.
- `arms`, by `python -m pmemlab.workloads.checkpoint_io --json`: a list of objects: `model`,
  `medium`, `format`, `save_bytes_per_s`, `cold_bytes_per_s`, `warm_bytes_per_s`, `stall_seconds`,
  and, of a paced medium, `device` and `kind`. Beside it `kind`, of the others' rates, as a
  metric's.
- `first_tiers`, by `python -m pmemlab.workloads.cache_sizes --json`: a list of objects, one a size
  of the DRAM before persistent memory: `share` of the rows that it has room for, `bytes`,
  `hit_rate`, of the ids, counted; and, where they were modelled, `app_direct_memory_ns` and
  `memory_mode_memory_ns` an id, `app_direct_ids_per_s`, `memory_mode_ids_per_s` and
  `memory_mode_hit_rate`. Beside it `table`, which it was, and `dram` and `pmem`, the devices.
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
    "CacheSweep",
    "CheckpointArm",
    "FidelityRow",
    "FidelitySection",
    "FirstTier",
    "Plan",
    "PlanChoice",
    "PlannedTier",
    "Results",
    "ResultsError",
    "read_folder",
]


class ResultsError(LabError, ValueError):
    """A folder of results, or a file in it, can't be read; the message names file and line or
    field."""


@dataclass(frozen=True)
class PlannedTier:
    """hit_rate: of all lookups, the share that this tier answers."""

    device: str
    rows: float
    bytes: float
    hit_rate: float


@dataclass(frozen=True)
class PlanChoice:
    """One way to store the tables. rank: its place in the plan, from 1.

    lookups_per_s: of one machine, at most. machine, machines: which, and how many are needed; None,
    as the prices, where no machine has such devices: `why_unpriced` says so.
    """

    rank: int
    storage_type: str
    tiers: tuple[PlannedTier, ...]
    lookups_per_s: float
    machine: str
    machines: float | None
    step_ms: float | None
    usd_per_month: float | None
    usd_per_million_lookups: float | None
    why_unpriced: str

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(tier.device for tier in self.tiers)


@dataclass(frozen=True)
class Plan:
    """workload: what was asked for. choices: the best first."""

    file: str
    workload: Mapping[str, Any]
    choices: tuple[PlanChoice, ...]


@dataclass(frozen=True)
class FidelityRow:
    """A prediction beside the truth. aim_percent: the error that it should stay within."""

    name: str
    published: float
    predicted: float
    unit: str
    aim_percent: float | None
    note: str

    @property
    def error_percent(self) -> float:
        """Above 0 where the prediction is too high."""
        return (self.predicted / self.published - 1) * 100

    @property
    def holds(self) -> bool | None:
        """Whether the error is within the aim; None where there is none."""
        if self.aim_percent is None:
            return None
        return round(abs(self.error_percent), 10) <= self.aim_percent


@dataclass(frozen=True)
class FidelitySection:
    """Rows of one kind. intro: what was compared, and how. remarks: what else there is to know."""

    title: str
    intro: str
    rows: tuple[FidelityRow, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointArm:
    """Rates of one format on one medium, and how long training waits for a save; None where that
    is unknown. device: it was paced as."""

    model: str
    medium: str
    format: str
    device: str | None
    kind: MetricKind
    save_bytes_per_s: float | None
    cold_bytes_per_s: float | None
    warm_bytes_per_s: float | None
    stall_seconds: float | None


@dataclass(frozen=True)
class FirstTier:
    """DRAM of one size before persistent memory. share: of the rows, that it has room for.
    hit_rate: of the ids, that the engine found there, counted. The others are modelled, None where
    that wasn't done. memory_ns: that the devices take an id; ids_per_s: with the work of this
    computer's processor; memory_mode_hit_rate: of the ids, where the DRAM is memory mode's cache.
    """

    share: float
    bytes: float
    hit_rate: float
    app_direct_memory_ns: float | None
    memory_mode_memory_ns: float | None
    app_direct_ids_per_s: float | None
    memory_mode_ids_per_s: float | None
    memory_mode_hit_rate: float | None


@dataclass(frozen=True)
class CacheSweep:
    """One table with DRAM of several sizes, ascending. dram, pmem: the modelled devices."""

    table: str
    dram: str
    pmem: str
    first_tiers: tuple[FirstTier, ...]


@dataclass(frozen=True)
class Results:
    """What a folder holds. rows: the newest of each run. left_out: files that are no results."""

    folder: Path
    rows: Sequence[ResultRow] = ()
    plans: Sequence[Plan] = ()
    fidelity: Sequence[FidelitySection] = ()
    checkpoints: Sequence[CheckpointArm] = ()
    cache_sweeps: Sequence[CacheSweep] = ()
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
    fidelity: dict[str, FidelitySection] = {}
    arms: dict[tuple[str, str, str, str | None], CheckpointArm] = {}
    sweeps: dict[tuple[str, str, str], CacheSweep] = {}
    left_out: list[str] = []
    for path in documents:
        fields = _object(path)
        if (choices := fields.sections("plans")) is not None:
            plans.append(Plan(path.name, fields.mapping("workload"), _choices(choices)))
        elif (sections := fields.sections("sections")) is not None:
            fidelity |= {section.title: section for section in map(_fidelity, sections)}
        elif (of_arms := fields.sections("arms")) is not None:
            kind = _kind(fields, "measured")
            for arm in (_arm(of_arm, kind) for of_arm in of_arms):
                arms[arm.model, arm.medium, arm.format, arm.device] = arm
        elif (first_tiers := fields.sections("first_tiers")) is not None:
            sweep = _sweep(fields, first_tiers)
            sweeps[sweep.table, sweep.dram, sweep.pmem] = sweep
        else:
            left_out.append(path.name)
    return Results(
        folder=folder,
        rows=list(rows.values()),
        plans=plans,
        fidelity=list(fidelity.values()),
        checkpoints=list(arms.values()),
        cache_sweeps=list(sweeps.values()),
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


def _choices(sections: Sequence[Fields]) -> tuple[PlanChoice, ...]:
    return tuple(
        PlanChoice(
            rank=rank,
            storage_type=choice.text("storage_type"),
            tiers=_planned_tiers(choice),
            lookups_per_s=_above_0(choice, "lookups_per_s"),
            machine=_text(choice, "machine"),
            machines=_number(choice, "machines"),
            step_ms=_number(choice, "step_ms"),
            usd_per_month=_number(choice, "usd_per_month"),
            usd_per_million_lookups=_number(choice, "usd_per_million_lookups"),
            why_unpriced=_text(choice, "why_unpriced"),
        )
        for rank, choice in enumerate(sections, start=1)
    )


def _planned_tiers(choice: Fields) -> tuple[PlannedTier, ...]:
    tiers = choice.sections("tiers")
    if not tiers:
        raise choice.error("tiers", "is missing: a list of one tier or more")
    return tuple(
        PlannedTier(
            device=tier.text("device"),
            rows=_at_least_0(tier, "rows"),
            bytes=_at_least_0(tier, "bytes"),
            hit_rate=_at_least_0(tier, "hit_rate"),
        )
        for tier in tiers
    )


def _fidelity(section: Fields) -> FidelitySection:
    rows = section.sections("rows")
    if rows is None:
        raise section.error("rows", "is missing")
    return FidelitySection(
        title=section.text("title"),
        intro=_text(section, "intro"),
        rows=tuple(
            FidelityRow(
                name=row.text("name"),
                published=_above_0(row, "published"),
                predicted=_at_least_0(row, "predicted"),
                unit=_text(row, "unit"),
                aim_percent=_number(row, "aim_percent"),
                note=_text(row, "note"),
            )
            for row in rows
        ),
        remarks=section.texts("remarks"),
    )


def _arm(arm: Fields, kind: MetricKind) -> CheckpointArm:
    return CheckpointArm(
        model=arm.text("model"),
        medium=arm.text("medium"),
        format=arm.text("format"),
        device=_text(arm, "device") or None,
        kind=_kind(arm, kind),
        save_bytes_per_s=_number(arm, "save_bytes_per_s"),
        cold_bytes_per_s=_number(arm, "cold_bytes_per_s"),
        warm_bytes_per_s=_number(arm, "warm_bytes_per_s"),
        stall_seconds=_number(arm, "stall_seconds"),
    )


def _sweep(fields: Fields, first_tiers: Sequence[Fields]) -> CacheSweep:
    tiers = (
        FirstTier(
            share=_above_0(tier, "share"),
            bytes=_above_0(tier, "bytes"),
            hit_rate=_at_least_0(tier, "hit_rate"),
            app_direct_memory_ns=_number(tier, "app_direct_memory_ns"),
            memory_mode_memory_ns=_number(tier, "memory_mode_memory_ns"),
            app_direct_ids_per_s=_number(tier, "app_direct_ids_per_s"),
            memory_mode_ids_per_s=_number(tier, "memory_mode_ids_per_s"),
            memory_mode_hit_rate=_number(tier, "memory_mode_hit_rate"),
        )
        for tier in first_tiers
    )
    return CacheSweep(
        table=fields.text("table"),
        dram=fields.text("dram"),
        pmem=fields.text("pmem"),
        first_tiers=tuple(sorted(tiers, key=lambda tier: tier.share)),
    )


def _kind(fields: Fields, default: MetricKind) -> MetricKind:
    kind = fields.take("kind")
    if kind is None:
        return default
    for known in get_args(MetricKind):
        if kind == known:
            return known  # type: ignore[no-any-return]
    raise fields.error("kind", f"must be one of {', '.join(get_args(MetricKind))}, not {kind!r}")


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


def _at_least_0(fields: Fields, name: str) -> float:
    value = fields.take(name, required=True)
    if not is_number(value) or value < 0:
        raise fields.error(name, f"must be a number of at least 0, not {value!r}")
    return float(value)
