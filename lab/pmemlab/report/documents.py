"""What a folder of results may hold, and how it is read.

`*.jsonl`: metrics, one JSON object a line (see `pmemlab.scenarios.metrics`); `make scenarios`
writes them.

`*.json`: one object, told apart by the field that it alone has. Numbers that aren't known may be
null or left out; fields that aren't named here are left alone.

- `plans`, by `pmemlab model plan --json`: a list of objects, the best first: `storage_type`;
  `tiers`, a list of objects with `device`, `rows`, `bytes` and `hit_rate` (of all lookups);
  `lookups_per_s`, of one machine at most; and where they are known `machine` (a name), `machines`
  (how many),
  `step_ms`, `usd_per_month`, `usd_per_million_lookups` and `why_unpriced`. Beside it `workload`, an
  object: what was asked for.
- `sections`, by `pmemlab model fidelity --json`: a list of objects: `title`, `intro`, `remarks`
  (a list of texts) and `rows`, a list of objects: `name`; `published` and `predicted`, in `unit`;
  and where there is one `aim_percent`, the error to stay within, and `note`.
- `arms`, by `python -m benchmarks.checkpoint_io --json`: a list of objects: `model`,
  `medium`, `format`, `save_bytes_per_s`, `cold_bytes_per_s`, `warm_bytes_per_s`, `stall_seconds`,
  and, of a paced medium, `device` and `kind`. Beside it `kind`, of the others' rates, as a
  metric's.
- `first_tiers`, by `python -m benchmarks.cache_sizes --json`: a list of objects, one a size
  of the DRAM before persistent memory: `share` of the rows that it has room for, `bytes`,
  `hit_rate`, of the ids, counted; and, where they were modelled, `app_direct_memory_ns` and
  `memory_mode_memory_ns` an id, `app_direct_ids_per_s`, `memory_mode_ids_per_s` and
  `memory_mode_hit_rate`. Beside it `table`, which it was, and `dram` and `pmem`, the devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, get_args

from pmemlab.errors import LabError
from pmemlab.scenarios.metrics import Metric, MetricKind
from pmemlab.scenarios.rows import ResultRow, RowKey, rows_by_key
from pmemlab.schema import (
    AtLeast0,
    Document,
    Few,
    File,
    From,
    Many,
    MaybeEmpty,
    Must,
    Number,
    Positive,
    Text,
    Texts,
)

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


_Kind = Annotated[MetricKind, Must(f"one of {', '.join(get_args(MetricKind))}")]


@dataclass(frozen=True)
class PlannedTier(Document, open=True):
    """hit_rate: of all lookups, the share that this tier answers."""

    device: Text
    rows: AtLeast0
    bytes: AtLeast0
    hit_rate: AtLeast0


@dataclass(frozen=True)
class PlanChoice(Document, context=("rank",), open=True):
    """One way to store the tables. rank: its place in the plan, from 1.

    lookups_per_s: of one machine, at most. machine, machines: which, and how many are needed; None,
    as the prices, where no machine has such devices: `why_unpriced` says so.
    """

    rank: int
    storage_type: Text
    tiers: Few[PlannedTier]
    lookups_per_s: Positive
    machine: MaybeEmpty = ""
    machines: Number | None = None
    step_ms: Number | None = None
    usd_per_month: Number | None = None
    usd_per_million_lookups: Number | None = None
    why_unpriced: MaybeEmpty = ""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(tier.device for tier in self.tiers)


def _ranked(choices: Sequence[PlanChoice]) -> tuple[PlanChoice, ...]:
    return tuple(replace(choice, rank=rank) for rank, choice in enumerate(choices, start=1))


@dataclass(frozen=True)
class Plan(Document, aliases={"choices": "plans"}, context=("file",), open=True):
    """workload: what was asked for. choices: the best first."""

    file: str
    choices: Annotated[tuple[PlanChoice, ...], From(Many[PlanChoice], _ranked)]
    workload: Annotated[Mapping[str, Any], Must("a mapping")] = field(default_factory=dict)


@dataclass(frozen=True)
class FidelityRow(Document, open=True):
    """A prediction beside the truth. aim_percent: the error that it should stay within."""

    name: Text
    published: Positive
    predicted: AtLeast0
    unit: MaybeEmpty = ""
    aim_percent: Number | None = None
    note: MaybeEmpty = ""

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
class FidelitySection(Document, open=True):
    """Rows of one kind. intro: what was compared, and how. remarks: what else there is to know."""

    title: Text
    rows: Many[FidelityRow]
    intro: MaybeEmpty = ""
    remarks: Texts = ()


@dataclass(frozen=True)
class _Fidelity(Document, open=True):
    sections: Many[FidelitySection]


@dataclass(frozen=True)
class CheckpointArm(Document, extra=("kind",), context=("kind",), open=True):
    """Rates of one format on one medium, and how long training waits for a save; None where that
    is unknown. device: it was paced as. kind: the document's, where the arm has none."""

    model: Text
    medium: Text
    format: Text
    kind: _Kind
    device: MaybeEmpty | None = None
    save_bytes_per_s: Number | None = None
    cold_bytes_per_s: Number | None = None
    warm_bytes_per_s: Number | None = None
    stall_seconds: Number | None = None


@dataclass(frozen=True)
class _Checkpoints(Document, open=True):
    arms: Many[CheckpointArm]
    kind: _Kind = "measured"


@dataclass(frozen=True)
class FirstTier(Document, open=True):
    """DRAM of one size before persistent memory. share: of the rows, that it has room for.
    hit_rate: of the ids, that the engine found there, counted. The others are modelled, None where
    that wasn't done. memory_ns: that the devices take an id; ids_per_s: with the work of this
    computer's processor; memory_mode_hit_rate: of the ids, where the DRAM is memory mode's cache.
    """

    share: Positive
    bytes: Positive
    hit_rate: AtLeast0
    app_direct_memory_ns: Number | None = None
    memory_mode_memory_ns: Number | None = None
    app_direct_ids_per_s: Number | None = None
    memory_mode_ids_per_s: Number | None = None
    memory_mode_hit_rate: Number | None = None


def _ascending(first_tiers: Sequence[FirstTier]) -> tuple[FirstTier, ...]:
    return tuple(sorted(first_tiers, key=lambda tier: tier.share))


@dataclass(frozen=True)
class CacheSweep(Document, open=True):
    """One table with DRAM of several sizes, ascending. dram, pmem: the modelled devices."""

    table: Text
    dram: Text
    pmem: Text
    first_tiers: Annotated[tuple[FirstTier, ...], From(Many[FirstTier], _ascending)]


@dataclass(frozen=True)
class _AnyDocument(Document, open=True):
    plans: object = None
    sections: object = None
    arms: object = None
    first_tiers: object = None
    kind: object = None


@dataclass(frozen=True)
class _MetricLine(Document, open=True):
    """What the report needs of a metric; `Metric` checks what goes together."""

    name: Text
    unit: MaybeEmpty
    kind: _Kind
    scenario: Text
    storage_type: Text
    topology: Text
    machine: Text
    accelerator: Text
    facts: Annotated[Mapping[str, Any], Must("a mapping")]
    commit: Text
    time: Text
    value: Number | None = None
    devices: Annotated[
        tuple[Annotated[str | None, Must("a device's name or null")], ...],
        Must("a list of devices' names"),
    ] = ()


@dataclass(frozen=True)
class Results:
    """What a folder holds. rows: the newest of each run. left_out: files that are no results, and
    lines that were cut off."""

    folder: Path
    rows: Sequence[ResultRow] = ()
    plans: Sequence[Plan] = ()
    fidelity: Sequence[FidelitySection] = ()
    checkpoints: Sequence[CheckpointArm] = ()
    cache_sweeps: Sequence[CacheSweep] = ()
    left_out: Sequence[str] = field(default_factory=tuple)


def read_folder(folder: Path) -> Results:
    """Read every file of the folder; if a result appears twice, take the newest: of metrics by
    their time, of documents by the names of files.

    A last line that was cut off, as a killed run leaves one, is left out.

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
    left_out: list[str] = []
    rows: dict[RowKey, ResultRow] = {}
    for path in lines:
        for key, row in rows_by_key(_metrics(path, left_out)).items():
            if key not in rows or rows[key].time <= row.time:
                rows[key] = row
    plans: list[Plan] = []
    fidelity: dict[str, FidelitySection] = {}
    arms: dict[tuple[str, str, str, str | None], CheckpointArm] = {}
    sweeps: dict[tuple[str, str, str], CacheSweep] = {}
    for path in documents:
        file = File.of_json(path, ResultsError)
        told_apart_by = file.read(_AnyDocument)
        if told_apart_by.plans is not None:
            plans.append(file.read(Plan, {"file": path.name, "rank": 0}))
        elif told_apart_by.sections is not None:
            fidelity |= {section.title: section for section in file.read(_Fidelity).sections}
        elif told_apart_by.arms is not None:
            kind = told_apart_by.kind or _Checkpoints.kind
            for arm in file.read(_Checkpoints, {"kind": kind}).arms:
                arms[arm.model, arm.medium, arm.format, arm.device] = arm
        elif told_apart_by.first_tiers is not None:
            sweep = file.read(CacheSweep)
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


def _metrics(path: Path, left_out: list[str]) -> Iterator[Metric]:
    """Yields the metrics of a file. Raises ResultsError, which names the line and the field."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: can't be read: {error}") from error
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        at = Path(f"{path}:{number}")
        if not line.strip():
            continue
        try:
            content = json.loads(line.decode())
            File(at, content, ResultsError, {}).read(_MetricLine)
            yield Metric.from_json(content)
        except ResultsError:
            raise
        except (TypeError, ValueError) as error:
            if not line.endswith(b"\n"):
                left_out.append(f"{path.name}:{number}")
                return
            raise ResultsError(f"{at}: not a metric: {error}") from error


_MAKES_RESULTS: Final = "`make scenarios` makes results"
