"""Reads and checks device files, in which every figure has a unit and a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pmemlab.errors import DeviceFileError
from pmemlab.model.devices.curves import (
    BandwidthCurve,
    BandwidthRow,
    LoadedLatencyCurve,
    LoadedLatencyRow,
)
from pmemlab.schema import (
    AnyNumber,
    Count,
    Document,
    FieldError,
    File,
    From,
    Must,
    OneOrMore,
    Parsed,
    Positive,
    Text,
    Texts,
    check_bytes,
)

__all__ = [
    "BLOCK_OPERATIONS",
    "GPU_OPERATIONS",
    "MEDIA_LINE",
    "MEMORY_OPERATIONS",
    "PATTERNS",
    "CompositionFile",
    "Curve",
    "DeviceFile",
    "Kind",
    "MeasuredSystem",
    "Source",
    "read_device_file",
]

Kind = Literal["memory", "block", "gpu"]
Curve = tuple[str, str]
"""Operation and pattern."""

MEMORY_OPERATIONS = ("load", "store", "store-clwb", "ntstore", "read:write 1:1")
"""store: written back by the caches later. store-clwb: each line written back at once. ntstore:
streamed past the caches. read:write 1:1: as many lines read as written, both counted; plain stores
cause this traffic.
"""
BLOCK_OPERATIONS = ("read", "write")
GPU_OPERATIONS = ("read", "write", "to-host", "to-device", "launch")
"""read, write: of the GPU's memory, by kernels. to-host, to-device: over the bus, one direction at
a time. launch: of a kernel, which moves no bytes.
"""
PATTERNS = ("random", "sequential")

_MB_PER_S = {"MB/s": 1.0, "GB/s": 1e3}
_NS = {"ns": 1.0, "us": 1e3}


def _context_name(names: str) -> Parsed:
    """Returns a parser for one of the `names` that `read_device_file` passes as context."""

    def parse(value: object, context: Mapping[str, Any]) -> object:
        if value not in context[names]:
            raise FieldError(f"must be one of {', '.join(context[names])}, not {value!r}")
        return value

    return Parsed(parse, with_context=True)


def _choice(choices: Sequence[str]) -> Must:
    return Must(f"one of {', '.join(choices)}", lambda value: value in choices)


def _bytes_in_units(unit: int) -> From:
    """Returns a parser for a number above 0 in multiples of `unit` bytes; the result is in
    bytes.
    """

    def in_bytes(value: float) -> int:
        check_bytes(value * unit)
        return round(value * unit)

    return From(Positive, in_bytes)


def _is_ascending(values: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(values))


MEDIA_LINE = Must(
    "a power of two from 64 to 1,048,576",
    lambda size: size.bit_count() == 1 and 64 <= size <= 1 << 20,
)
_SourceId = Annotated[str, _context_name("sources")]
_MbPerS = Annotated[str, _choice([*_MB_PER_S])]
_Ns = Annotated[str, _choice([*_NS])]
_Figures = Annotated[tuple[Positive, ...], Must("a list of figures", len, items_too=True)]
_Counts = Annotated[
    tuple[Count, ...],
    Must("whole numbers above 0 in rising order", lambda c: c and _is_ascending(c)),
]


@dataclass(frozen=True)
class Source(Document):
    """The source of figures. what: which figures, and how they were obtained.

    url: where they were published. measured: the date of the user's own measurement, without a url.
    """

    title: Text
    what: Text
    url: Text | None = None
    measured: Text | None = None

    def check(self) -> None:
        if self.url is None and self.measured is None:
            raise FieldError(
                "is missing; or give the day on which you measured, as measured", "url"
            )


_Sources = Annotated[
    Mapping[str, Source], Must("a mapping of one source or more", len, items_too=True)
]


@dataclass(frozen=True)
class MeasuredSystem(Document, aliases={"last_level_cache_bytes": "last_level_cache_mib"}):
    """The system that the device was measured in. Its caches and cores are part of the figures.

    lines_in_flight: cache lines that one core fetches at once; None if the curves include it.
    """

    cpu: Text
    last_level_cache_bytes: Annotated[int, _bytes_in_units(1 << 20)]
    source: _SourceId
    lines_in_flight: Count | None = None


@dataclass(frozen=True)
class _Entry(Document):
    operation: Annotated[str, _context_name("operations")]
    pattern: Annotated[str, _choice(PATTERNS)]
    source: _SourceId

    def figure(self) -> object:
        """Returns the entry's figure or curve, in ns and MB/s."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Idle(_Entry):
    value: Positive
    unit: _Ns

    def figure(self) -> float:
        return self.value * _NS[self.unit]


@dataclass(frozen=True)
class _Ceiling(_Entry, aliases={"size_bytes": "bytes"}):
    value: Positive
    unit: _MbPerS
    size_bytes: Count

    def figure(self) -> float:
        return self.value * _MB_PER_S[self.unit]


@dataclass(frozen=True)
class _Point(Document, aliases={"size_bytes": "bytes"}):
    """The values of one access size. threads: None: the curve's `threads`."""

    size_bytes: Count
    values: _Figures
    threads: _Counts | None = None

    def row(self, unit: str, threads: _Counts) -> BandwidthRow:
        factor = self.size_bytes / 1e6 if unit == "IOPS" else _MB_PER_S[unit]
        return BandwidthRow(self.size_bytes, threads, tuple(v * factor for v in self.values))


@dataclass(frozen=True)
class _BlockPoint(_Point, aliases={"size_bytes": "bytes", "threads": "in_flight"}):
    pass


@dataclass(frozen=True)
class _Bandwidth(_Entry):
    """A bandwidth curve. threads: for points without their own."""

    concurrency: ClassVar[str] = "threads"

    unit: _MbPerS
    points: OneOrMore[_Point]
    threads: _Counts | None = None

    def check(self) -> None:
        _check_above_before("bytes", [point.size_bytes for point in self.points])
        for number, point in enumerate(self.points):
            threads = point.threads or self.threads
            if threads is None:
                raise FieldError("is missing", f"points[{number}].{self.concurrency}")
            _check_length(f"points[{number}].values", point.values, len(threads))

    def figure(self) -> BandwidthCurve:
        return BandwidthCurve(
            point.row(self.unit, point.threads or self.threads or ()) for point in self.points
        )


@dataclass(frozen=True)
class _BlockBandwidth(_Bandwidth, aliases={"threads": "in_flight"}):
    concurrency: ClassVar[str] = "in_flight"

    unit: Annotated[str, _choice([*_MB_PER_S, "IOPS"])]
    points: OneOrMore[_BlockPoint]


@dataclass(frozen=True)
class _Units(Document):
    bandwidth: _MbPerS
    latency: _Ns


@dataclass(frozen=True)
class _LoadedPoint(Document):
    threads: Count
    bandwidth: _Figures
    latency: _Figures

    def check(self) -> None:
        _check_length("latency", self.latency, len(self.bandwidth))
        if not _is_ascending(self.bandwidth):
            raise FieldError(f"must be in rising order, not {[*self.bandwidth]}", "bandwidth")
        if [*self.latency] != sorted(self.latency):
            raise FieldError(f"must be in rising order, not {[*self.latency]}", "latency")


@dataclass(frozen=True)
class _Loaded(_Entry):
    units: _Units
    points: OneOrMore[_LoadedPoint]

    def check(self) -> None:
        _check_above_before("threads", [point.threads for point in self.points])

    def figure(self) -> LoadedLatencyCurve:
        to_mb_per_s, to_ns = _MB_PER_S[self.units.bandwidth], _NS[self.units.latency]
        return LoadedLatencyCurve(
            LoadedLatencyRow(
                point.threads,
                tuple(value * to_mb_per_s for value in point.bandwidth),
                tuple(value * to_ns for value in point.latency),
            )
            for point in self.points
        )


def _by_curve(entry: type[_Entry]) -> From:
    """Returns a parser of a list of entries into a dictionary by curve; each curve occurs once."""

    def by_curve(entries: Sequence[_Entry]) -> dict[Curve, object]:
        curves: dict[Curve, object] = {}
        for number, each in enumerate(entries):
            curve = each.operation, each.pattern
            if curve in curves:
                raise FieldError(_DUPLICATE_CURVE.format(*curve), f"[{number}].operation")
            curves[curve] = each.figure()
        return curves

    return From(AnyNumber[entry], by_curve)  # type: ignore[valid-type]


_DUPLICATE_CURVE = "there is a {1} {0} already"


@dataclass(frozen=True)
class DeviceFile(
    Document,
    aliases={"capacity_bytes": "capacity_gb", "system": "measured_on"},
    context=("path",),
):
    """A device as its file describes it. notes: caveats about the figures; sources: by id.

    capacity_bytes: of one unit, as it is sold and priced. system: None for a disk. idle_latency: ns
    of one access to the idle device. ceilings: the most MB/s of all threads together, for
    operations of which no more is known.
    """

    path: Path
    name: Text
    title: Text
    kind: Kind
    capacity_bytes: Annotated[int, _bytes_in_units(10**9)]
    media_line_bytes: Annotated[int, MEDIA_LINE]
    sources: _Sources
    system: MeasuredSystem | None
    notes: Texts = ()
    idle_latency: Annotated[Mapping[Curve, float], _by_curve(_Idle)] = field(default_factory=dict)
    bandwidth: Annotated[Mapping[Curve, BandwidthCurve], _by_curve(_Bandwidth)] = field(
        default_factory=dict
    )
    loaded_latency: Annotated[Mapping[Curve, LoadedLatencyCurve], _by_curve(_Loaded)] = field(
        default_factory=dict
    )
    ceilings: Annotated[Mapping[Curve, float], _by_curve(_Ceiling)] = field(default_factory=dict)

    def check(self) -> None:
        curves: set[Curve] = set()
        for name in ("bandwidth", "loaded_latency", "ceilings"):
            for curve in getattr(self, name):
                if curve in curves:
                    raise FieldError(_DUPLICATE_CURVE.format(*curve), name)
                curves.add(curve)
        if not curves:
            raise FieldError("is missing: a device has at least one curve", "bandwidth")


@dataclass(frozen=True)
class _BlockFile(
    DeviceFile,
    aliases={"capacity_bytes": "capacity_gb"},
    context=("path", "system", "loaded_latency"),
):
    """A disk's file. It has no latency under load: bandwidth by requests in flight tells
    the same.
    """

    bandwidth: Annotated[Mapping[Curve, BandwidthCurve], _by_curve(_BlockBandwidth)] = field(
        default_factory=dict
    )

    def check(self) -> None:
        super().check()
        if ("read", "random") not in self.idle_latency:
            raise FieldError("is missing for random reads", "idle_latency")


@dataclass(frozen=True)
class _GpuFile(
    DeviceFile,
    aliases={"capacity_bytes": "capacity_gb"},
    context=("path", "system", "bandwidth", "loaded_latency"),
):
    """A GPU's file: ceilings of its memory and its bus, and the time of a kernel's launch."""

    def check(self) -> None:
        super().check()
        for operation in ("read", "write", "to-host", "to-device"):
            if (operation, "sequential") not in self.ceilings:
                raise FieldError(f"is missing for sequential {operation}", "ceilings")


@dataclass(frozen=True)
class _MediaAccesses(Document):
    dram_read: Count = 0
    dram_write: Count = 0
    pmem_read: Count = 0
    pmem_write: Count = 0

    def check(self) -> None:
        if not any(vars(self).values()):
            raise FieldError("must be one media access or more")


@dataclass(frozen=True)
class _Outcomes(Document):
    hit: _MediaAccesses
    clean_miss: _MediaAccesses
    dirty_miss: _MediaAccesses


@dataclass(frozen=True)
class _Requests(Document):
    source: _SourceId
    read: _Outcomes
    write: _Outcomes

    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        return {
            (request, outcome): vars(accesses)
            for request, outcomes in (("read", self.read), ("write", self.write))
            for outcome, accesses in vars(outcomes).items()
        }


@dataclass(frozen=True)
class _Cache(Document, aliases={"size_bytes": "size_gb"}):
    size_bytes: Annotated[int, _bytes_in_units(10**9)]
    line_bytes: Count
    source: _SourceId


@dataclass(frozen=True)
class CompositionFile(Document, context=("path",)):
    """Memory mode: DRAM that caches persistent memory.

    media_accesses: for ("read" | "write", "hit" | "clean_miss" | "dirty_miss"), the numbers of
        dram_read, dram_write, pmem_read and pmem_write for one line.
    """

    path: Path
    name: Text
    title: Text
    kind: Literal["memory-mode"]
    dram: Text
    pmem: Text
    cache: _Cache
    sources: _Sources
    media_accesses: Annotated[
        Mapping[tuple[str, str], Mapping[str, int]], From(_Requests, _Requests.counts)
    ]
    notes: Texts = ()


_FILE_TYPES: dict[str, tuple[type[DeviceFile | CompositionFile], Sequence[str]]] = {
    "memory": (DeviceFile, MEMORY_OPERATIONS),
    "block": (_BlockFile, BLOCK_OPERATIONS),
    "gpu": (_GpuFile, GPU_OPERATIONS),
    "memory-mode": (CompositionFile, ()),
}
_MEMORY_FIELDS: dict[str, object] = {"system": None, "bandwidth": [], "loaded_latency": []}
"""Values of the fields that only files of memories have."""


@dataclass(frozen=True)
class _KindField(Document, open=True):
    kind: Annotated[str, _choice([*_FILE_TYPES])]


def read_device_file(path: Path) -> DeviceFile | CompositionFile:
    """Reads and checks a device file. Raises DeviceFileError, which names file, line and field."""
    file = File.from_yaml(path, DeviceFileError)
    document, operations = _FILE_TYPES[file.read(_KindField).kind]
    sources = file.content.get("sources")
    context = {"sources": [*sources] if isinstance(sources, dict) else [], "operations": operations}
    return file.read(document, {**context, **_MEMORY_FIELDS})


def _check_length(name: str, figures: Sequence[float], count: int) -> None:
    if len(figures) != count:
        raise FieldError(f"has {len(figures)} figures where there must be {count}", name)


def _check_above_before(name: str, values: Sequence[int]) -> None:
    for number, (before, value) in enumerate(pairwise(values), start=1):
        if value <= before:
            raise FieldError(f"{value} must be above {before} before", f"points[{number}].{name}")
