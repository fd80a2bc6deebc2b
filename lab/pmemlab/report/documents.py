"""The documents in a folder of results, and how they are read.

`*.jsonl`: metrics, one JSON object a line (see `pmemlab.scenarios.metrics`); `make scenarios`
writes them.

`*.json`: one object, recognised by the field that only its kind has. Unknown numbers may be null or
left out; fields that aren't named here are ignored. `time`, if present, is the time when the
document was made, as in a metric: an ISO time, which may end in Z.

- `plans`, by `pmemlab model plan --json`: a list of `PlanChoice`, the best first. See `Plan`.
- `sections`, by `pmemlab model fidelity --json`: a list of `model.fidelity.rows.Section`.
- `arms`, by `python -m benchmarks.checkpoint_io --json`: a list of `CheckpointArm`. Beside it
  `kind`, for the arms that have no kind of their own.
- `first_tiers`, by `python -m benchmarks.cache_sizes --json`: a list of `FirstTier`. See
  `CacheSweep`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

from pmemlab.errors import LabError
from pmemlab.model.fidelity.rows import Section
from pmemlab.scenarios.metrics import Metric, MetricKind
from pmemlab.scenarios.rows import ResultRow, RowKey, rows_by_key
from pmemlab.schema import (
    AnyNumber,
    AtLeast0,
    Document,
    FieldError,
    File,
    From,
    MaybeEmpty,
    Must,
    Number,
    OneOrMore,
    Positive,
    Text,
    Texts,
    check_characters,
)
from pmemlab.whole_file import read_whole

__all__ = [
    "CacheSweep",
    "CheckpointArm",
    "FirstTier",
    "Plan",
    "PlanChoice",
    "PlannedTier",
    "Results",
    "ResultsError",
    "read_folder",
]


T = TypeVar("T")


class ResultsError(LabError, ValueError):
    """A folder of results, or a file in it, can't be read; the message names file and line or
    field."""


_Kind = Annotated[MetricKind, Must(f"one of {', '.join(get_args(MetricKind))}")]


@dataclass(frozen=True)
class PlannedTier(Document, open=True):
    """A tier in a plan. hit_rate: the share of all lookups that this tier answers."""

    device: Text
    rows: AtLeast0
    bytes: AtLeast0
    hit_rate: AtLeast0


@dataclass(frozen=True)
class PlanChoice(Document, context=("rank",), open=True):
    """A way to store the tables. rank: its place in the plan, from 1.

    lookups_per_s: at most, by one machine. machine, machines: the machine's name, and how many are
        needed. These and the prices are None for the reason in `why_unpriced`.
    """

    rank: int
    storage_type: Text
    tiers: OneOrMore[PlannedTier]
    lookups_per_s: Positive
    machine: MaybeEmpty = ""
    machines: Positive | None = None
    step_ms: AtLeast0 | None = None
    usd_per_month: AtLeast0 | None = None
    usd_per_million_lookups: AtLeast0 | None = None
    why_unpriced: MaybeEmpty = ""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(tier.device for tier in self.tiers)


def _ranked(choices: Sequence[PlanChoice]) -> tuple[PlanChoice, ...]:
    return tuple(replace(choice, rank=rank) for rank, choice in enumerate(choices, start=1))


@dataclass(frozen=True)
class Plan(Document, aliases={"choices": "plans"}, context=("file",), open=True):
    """A plan. workload: the requested workload. choices: the best first."""

    file: str
    choices: Annotated[tuple[PlanChoice, ...], From(AnyNumber[PlanChoice], _ranked)]
    workload: Annotated[Mapping[str, Any], Must("a mapping")] = field(default_factory=dict)


@dataclass(frozen=True)
class _Fidelity(Document, open=True):
    sections: AnyNumber[Section]


@dataclass(frozen=True)
class CheckpointArm(Document, extra=("kind",), context=("kind",), open=True):
    """A format's rates on a medium, and how long training waits for a save; unknown values are
    None.

    device: the device that the medium was paced as. kind: the document's, if the arm has none."""

    model: Text
    medium: Text
    format: Text
    kind: _Kind
    device: MaybeEmpty | None = None
    save_bytes_per_s: AtLeast0 | None = None
    cold_bytes_per_s: AtLeast0 | None = None
    warm_bytes_per_s: AtLeast0 | None = None
    stall_seconds: AtLeast0 | None = None


@dataclass(frozen=True)
class _Checkpoints(Document, open=True):
    arms: AnyNumber[CheckpointArm]
    kind: _Kind = "measured"


@dataclass(frozen=True)
class FirstTier(Document, open=True):
    """DRAM of one size before persistent memory.

    share: the share of the rows that fit in the DRAM.
    hit_rate: the share of the ids that the engine found in the DRAM, counted.
    The other numbers are modelled; None if that wasn't done.
    memory_ns: memory time per id: all accesses on the devices, without other work.
    ids_per_s: including the other work, as on the computer that ran it, in one thread.
    memory_mode_hit_rate: the share of the ids that needed no persistent memory, if the DRAM is
        memory mode's cache.
    """

    share: Positive
    bytes: Positive
    hit_rate: AtLeast0
    app_direct_memory_ns: AtLeast0 | None = None
    memory_mode_memory_ns: AtLeast0 | None = None
    app_direct_ids_per_s: AtLeast0 | None = None
    memory_mode_ids_per_s: AtLeast0 | None = None
    memory_mode_hit_rate: AtLeast0 | None = None


def _ascending(first_tiers: Sequence[FirstTier]) -> tuple[FirstTier, ...]:
    return tuple(sorted(first_tiers, key=lambda tier: tier.share))


@dataclass(frozen=True)
class CacheSweep(Document, open=True):
    """A table with DRAM of several sizes, ascending. dram, pmem: the modelled devices."""

    table: Text
    dram: Text
    pmem: Text
    first_tiers: Annotated[tuple[FirstTier, ...], From(AnyNumber[FirstTier], _ascending)]


@dataclass(frozen=True)
class _AnyDocument(Document, open=True):
    plans: object = None
    sections: object = None
    arms: object = None
    first_tiers: object = None
    kind: object = None
    time: object = None

    @property
    def is_result(self) -> bool:
        fields = (self.plans, self.sections, self.arms, self.first_tiers)
        return any(each is not None for each in fields)

    def made_at(self, file: File) -> float:
        """Returns when the document was made, in seconds since 1970: its `time`, else its file's.

        Raises ResultsError if `time` is no ISO time.
        """
        if self.time is None:
            return file.path.stat().st_mtime
        try:
            if not isinstance(self.time, str):
                raise TypeError
            # Python 3.10 knows no Z.
            text = f"{self.time[:-1]}+00:00" if self.time.endswith("Z") else self.time
            return datetime.fromisoformat(text).timestamp()
        except (TypeError, ValueError, OverflowError):
            problem = f"must be an ISO time, as 2026-02-09T12:00:00+00:00, not {self.time!r}"
            raise file.error("time", problem) from None


@dataclass(frozen=True)
class _MetricLine(Document, open=True):
    """The fields of a metric that the report needs; `Metric` checks their combinations."""

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
    not_judged: Texts = ()

    def check(self) -> None:
        unproved = self.facts.get("unproved", [])
        if not (isinstance(unproved, list) and all(type(each) is str for each in unproved)):
            raise FieldError(f"must be a list of texts, not {unproved!r}", "facts.unproved")


@dataclass(frozen=True)
class Results:
    """The content of a folder. rows: the newest of each run. left_out: files that are no results,
    and lines that were cut off."""

    folder: Path
    rows: Sequence[ResultRow] = ()
    plans: Sequence[Plan] = ()
    fidelity: Sequence[Section] = ()
    checkpoints: Sequence[CheckpointArm] = ()
    cache_sweeps: Sequence[CacheSweep] = ()
    left_out: Sequence[str] = field(default_factory=tuple)


class _Newest:
    """The newest result of each key, in the order in which the keys were first added."""

    def __init__(self) -> None:
        self._by_key: dict[object, tuple[float, object]] = {}

    def add(self, key: object, made_at: float, result: object) -> None:
        """Adds a result made at a time. At equal times, the later call wins."""
        key = type(result), key
        if key not in self._by_key or self._by_key[key][0] <= made_at:
            self._by_key[key] = (made_at, result)

    def of_type(self, kind: type[T]) -> list[T]:
        return [result for _, result in self._by_key.values() if isinstance(result, kind)]


def read_folder(folder: Path) -> Results:
    """Reads every file of the folder. If a result appears twice, takes the newest, by the time in
    the metric or the document, else by the file's time.

    Leaves out a last line that was cut off, which a killed run may leave, and an empty document,
    which a full disk may leave.

    Raises ResultsError, which names the file, for any other damage.
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
    newest = _Newest()
    for path in documents:
        if path.is_file() and path.stat().st_size == 0:
            left_out.append(path.name)
            continue
        file = File.from_json(path, ResultsError)
        document = file.read(_AnyDocument)
        if not document.is_result:
            left_out.append(path.name)
            continue
        made_at = document.made_at(file)
        for identity, result in _results_in(file, document):
            newest.add(identity, made_at, result)
    return Results(
        folder=folder,
        rows=list(rows.values()),
        plans=newest.of_type(Plan),
        fidelity=newest.of_type(Section),
        checkpoints=newest.of_type(CheckpointArm),
        cache_sweeps=newest.of_type(CacheSweep),
        left_out=left_out,
    )


def _results_in(file: File, fields: _AnyDocument) -> Iterator[tuple[object, object]]:
    """Yields each result of a document with its key among results of its kind."""
    if fields.plans is not None:
        yield file.path, file.read(Plan, {"file": file.path.name, "rank": 0})
    elif fields.sections is not None:
        for section in file.read(_Fidelity, {"intro": ""}).sections:
            yield section.title, section
    elif fields.arms is not None:
        for arm in file.read(_Checkpoints, {"kind": fields.kind or _Checkpoints.kind}).arms:
            yield (arm.model, arm.medium, arm.format, arm.device), arm
    else:
        sweep = file.read(CacheSweep)
        yield (sweep.table, sweep.dram, sweep.pmem), sweep


def _metrics(path: Path, left_out: list[str]) -> Iterator[Metric]:
    """Yields the metrics of a file. Raises ResultsError, which names the line and the field."""
    try:
        lines = read_whole(path)
    except OSError as error:
        raise ResultsError(f"{path}: can't be read: {error}") from error
    for number, line in enumerate(lines.splitlines(keepends=True), start=1):
        place = Path(f"{path}:{number}")
        if not line.strip():
            continue
        try:
            text = line.decode()
            content = json.loads(text)
            check_characters(text, content)
            File(place, content, ResultsError, {}).read(_MetricLine)
            yield Metric.from_json(content)
        except ResultsError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            if not line.endswith(b"\n"):
                left_out.append(f"{path.name}:{number}")
                return
            raise ResultsError(f"{place}: not a metric: {error}") from error


_MAKES_RESULTS: Final = "`make scenarios` makes results"
