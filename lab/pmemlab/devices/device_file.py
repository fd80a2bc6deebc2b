"""What a device's file says, checked: every figure has a unit and a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from pmemlab.devices.curves import (
    BandwidthCurve,
    BandwidthRow,
    LoadedLatencyCurve,
    LoadedLatencyRow,
)
from pmemlab.errors import DeviceFileError
from pmemlab.yaml_fields import Fields, is_number

__all__ = [
    "BLOCK_OPERATIONS",
    "MEMORY_OPERATIONS",
    "PATTERNS",
    "Ceiling",
    "CompositionFile",
    "Curve",
    "DeviceFile",
    "IdleLatency",
    "Kind",
    "MeasuredSystem",
    "Source",
    "read_device_file",
]

Kind = Literal["memory", "block"]
Curve = tuple[str, str]
"""Operation and pattern."""

MEMORY_OPERATIONS = ("load", "store", "store-clwb", "ntstore", "read:write 1:1")
"""store: left to the caches. store-clwb: each line written back at once. ntstore: streamed past the
caches. read:write 1:1: as many lines read as written, both counted, which is what stores that are
left to the caches make of a memory."""
BLOCK_OPERATIONS = ("read", "write")
PATTERNS = ("random", "sequential")

_MB_PER_S = {"MB/s": 1.0, "GB/s": 1e3}
_NS = {"ns": 1.0, "us": 1e3}


@dataclass(frozen=True)
class Source:
    """Where figures come from. what: which figures, and how they were got.

    url: where they were published; or else measured: the date on which one measured them oneself.
    """

    title: str
    url: str | None
    measured: str | None
    what: str


@dataclass(frozen=True)
class IdleLatency:
    """One access while nothing else is at the device."""

    ns: float
    source: str


@dataclass(frozen=True)
class Ceiling:
    """What all threads together get at most, where no more is known."""

    size_bytes: int
    mb_per_s: float
    source: str


@dataclass(frozen=True)
class MeasuredSystem:
    """What the device was in when it was measured. Its caches and cores are part of the figures.

    lines_in_flight: cache lines that one core fetches at once; None where curves say it.
    """

    cpu: str
    last_level_cache_bytes: int
    lines_in_flight: int | None
    source: str


@dataclass(frozen=True)
class DeviceFile:
    """A device as its file states it. notes: what figures leave open; sources: by their id.

    capacity_bytes: of one unit, as it is sold and priced. curve_sources: id by curve.
    """

    path: Path
    name: str
    title: str
    kind: Kind
    capacity_bytes: int
    media_line_bytes: int
    system: MeasuredSystem | None
    sources: dict[str, Source]
    notes: tuple[str, ...]
    idle_latency: dict[Curve, IdleLatency]
    bandwidth: dict[Curve, BandwidthCurve]
    loaded_latency: dict[Curve, LoadedLatencyCurve]
    ceilings: dict[Curve, Ceiling]
    curve_sources: dict[Curve, str]


@dataclass(frozen=True)
class CompositionFile:
    """Memory mode: DRAM that caches persistent memory.

    media_accesses: for ("read" | "write", "hit" | "clean_miss" | "dirty_miss"), how often each of
        dram_read, dram_write, pmem_read, pmem_write happens for one line.
    """

    path: Path
    name: str
    title: str
    dram: str
    pmem: str
    cache_bytes: int
    cache_line_bytes: int
    sources: dict[str, Source]
    notes: tuple[str, ...]
    media_accesses: dict[tuple[str, str], dict[str, int]]


def read_device_file(path: Path) -> DeviceFile | CompositionFile:
    """Raises DeviceFileError, which names file and field."""
    fields = Fields.of_file(path, DeviceFileError)
    name = fields.text("name")
    kind = fields.text("kind")
    if kind == "memory-mode":
        return _read_composition(fields, name)
    if kind not in ("memory", "block"):
        raise fields.error("kind", f"must be memory, block or memory-mode, not {kind!r}")
    return _read_device(fields, name, cast(Kind, kind))


def _read_device(fields: Fields, name: str, kind: Kind) -> DeviceFile:
    operations = MEMORY_OPERATIONS if kind == "memory" else BLOCK_OPERATIONS
    title = fields.text("title")
    capacity_bytes = _whole(fields, "capacity_gb", 10**9)
    media_line_bytes = _whole(fields, "media_line_bytes")
    sources = _read_sources(fields)
    system = _read_system(fields, sources) if kind == "memory" else None
    curve_sources: dict[Curve, str] = {}
    idle: dict[Curve, IdleLatency] = {}
    for entry in fields.sections("idle_latency") or []:
        curve, source = _curve_of(entry, operations, idle, sources)
        factor = _unit(entry, _NS)
        idle[curve] = IdleLatency(_figure(entry, "value") * factor, source)
        entry.finish()
    bandwidth: dict[Curve, BandwidthCurve] = {}
    for entry in fields.sections("bandwidth") or []:
        curve, source = _curve_of(entry, operations, bandwidth, sources)
        bandwidth[curve] = _read_bandwidth(entry, kind)
        curve_sources[curve] = source
        entry.finish()
    loaded: dict[Curve, LoadedLatencyCurve] = {}
    for entry in fields.sections("loaded_latency") or []:
        if kind == "block":
            raise fields.error("loaded_latency", "is of memory alone; give bandwidth by in_flight")
        curve, source = _curve_of(entry, operations, {**loaded, **bandwidth}, sources)
        loaded[curve] = _read_loaded_latency(entry)
        curve_sources[curve] = source
        entry.finish()
    ceilings: dict[Curve, Ceiling] = {}
    for entry in fields.sections("ceilings") or []:
        curve, source = _curve_of(entry, operations, {**ceilings, **loaded, **bandwidth}, sources)
        factor = _unit(entry, _MB_PER_S)
        ceilings[curve] = Ceiling(_whole(entry, "bytes"), _figure(entry, "value") * factor, source)
        entry.finish()
    notes = fields.texts("notes")
    fields.finish()
    if not bandwidth and not loaded and not ceilings:
        raise fields.error("bandwidth", "is missing: a device has at least one curve")
    reads = "load" if kind == "memory" else "read"
    if kind == "block" and (reads, "random") not in idle:
        raise fields.error("idle_latency", "is missing for random reads")
    return DeviceFile(
        path=fields.path,
        name=name,
        title=title,
        kind=kind,
        capacity_bytes=capacity_bytes,
        media_line_bytes=media_line_bytes,
        system=system,
        sources=sources,
        notes=notes,
        idle_latency=idle,
        bandwidth=bandwidth,
        loaded_latency=loaded,
        ceilings=ceilings,
        curve_sources=curve_sources,
    )


def _read_composition(fields: Fields, name: str) -> CompositionFile:
    sources = _read_sources(fields)
    cache = fields.section("cache", required=True)
    accesses = fields.section("media_accesses", required=True)
    _source_id(accesses, sources)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for request in ("read", "write"):
        outcomes = accesses.section(request, required=True)
        for outcome in ("hit", "clean_miss", "dirty_miss"):
            media = outcomes.section(outcome, required=True)
            counts[request, outcome] = {
                medium: media.count(medium, 0)
                for medium in ("dram_read", "dram_write", "pmem_read", "pmem_write")
            }
            media.finish()
            if not any(counts[request, outcome].values()):
                raise outcomes.error(outcome, "must be one media access or more")
        outcomes.finish()
    accesses.finish()
    composition = CompositionFile(
        path=fields.path,
        name=name,
        title=fields.text("title"),
        dram=fields.text("dram"),
        pmem=fields.text("pmem"),
        cache_bytes=_whole(cache, "size_gb", 10**9),
        cache_line_bytes=_whole(cache, "line_bytes"),
        sources=sources,
        notes=fields.texts("notes"),
        media_accesses=counts,
    )
    _source_id(cache, sources)
    cache.finish()
    fields.finish()
    return composition


def _read_sources(fields: Fields) -> dict[str, Source]:
    section = fields.section("sources", required=True)
    sources = {}
    for source_id in section.names():
        entry = section.section(source_id, required=True)
        measured = entry.text("measured", "") or None
        url = entry.text("url", "" if measured else None) or None
        sources[source_id] = Source(entry.text("title"), url, measured, entry.text("what"))
        entry.finish()
    if not sources:
        raise fields.error("sources", "must name at least one")
    return sources


def _read_system(fields: Fields, sources: dict[str, Source]) -> MeasuredSystem:
    entry = fields.section("measured_on", required=True)
    lines = entry.take("lines_in_flight")
    if lines is not None and (not isinstance(lines, int) or isinstance(lines, bool) or lines <= 0):
        raise entry.error("lines_in_flight", f"must be a whole number above 0, not {lines!r}")
    system = MeasuredSystem(
        cpu=entry.text("cpu"),
        last_level_cache_bytes=_whole(entry, "last_level_cache_mib", 1 << 20),
        lines_in_flight=lines,
        source=_source_id(entry, sources),
    )
    entry.finish()
    return system


def _curve_of(
    entry: Fields, operations: Sequence[str], known: dict[Curve, Any], sources: dict[str, Source]
) -> tuple[Curve, str]:
    operation = _one_of(entry, "operation", operations)
    pattern = _one_of(entry, "pattern", PATTERNS)
    if (operation, pattern) in known:
        raise entry.error("operation", f"there is a {pattern} {operation} already")
    return (operation, pattern), _source_id(entry, sources)


def _read_bandwidth(entry: Fields, kind: Kind) -> BandwidthCurve:
    units = tuple(_MB_PER_S) if kind == "memory" else (*_MB_PER_S, "IOPS")
    unit = _one_of(entry, "unit", units)
    concurrency = "threads" if kind == "memory" else "in_flight"
    rows: list[BandwidthRow] = []
    for point in _points(entry):
        size_bytes = _whole(point, "bytes")
        if rows and size_bytes <= rows[-1].size_bytes:
            raise point.error("bytes", f"{size_bytes} must be above {rows[-1].size_bytes} before")
        threads = _ascending_counts(point, concurrency)
        values = _figures(point, "values", len(threads))
        to_mb_per_s = size_bytes / 1e6 if unit == "IOPS" else _MB_PER_S[unit]
        rows.append(BandwidthRow(size_bytes, threads, tuple(v * to_mb_per_s for v in values)))
        point.finish()
    return BandwidthCurve(rows)


def _read_loaded_latency(entry: Fields) -> LoadedLatencyCurve:
    units = entry.section("units", required=True)
    to_mb_per_s = _unit(units, _MB_PER_S, "bandwidth")
    to_ns = _unit(units, _NS, "latency")
    units.finish()
    rows: list[LoadedLatencyRow] = []
    for point in _points(entry):
        threads = _whole(point, "threads")
        if rows and threads <= rows[-1].threads:
            raise point.error("threads", f"{threads} must be above {rows[-1].threads} before")
        bandwidth = _figures(point, "bandwidth")
        latency = _figures(point, "latency", len(bandwidth))
        _check_rising(point, "bandwidth", bandwidth, strictly=True)
        _check_rising(point, "latency", latency, strictly=False)
        rows.append(
            LoadedLatencyRow(
                threads,
                tuple(value * to_mb_per_s for value in bandwidth),
                tuple(value * to_ns for value in latency),
            )
        )
        point.finish()
    return LoadedLatencyCurve(rows)


def _points(entry: Fields) -> list[Fields]:
    points = entry.sections("points")
    if not points:
        raise entry.error("points", "is missing: a curve has at least one")
    return points


def _source_id(entry: Fields, sources: dict[str, Source]) -> str:
    return _one_of(entry, "source", tuple(sources))


def _one_of(entry: Fields, name: str, known: Sequence[str]) -> str:
    value = entry.text(name)
    if value not in known:
        raise entry.error(name, f"must be one of {', '.join(known)}, not {value!r}")
    return value


def _unit(entry: Fields, units: dict[str, float], name: str = "unit") -> float:
    return units[_one_of(entry, name, tuple(units))]


def _whole(entry: Fields, name: str, unit: int = 1) -> int:
    value = entry.take(name, required=True)
    if not is_number(value) or round(value * unit) <= 0 or (unit == 1 and value != int(value)):
        what = "a whole number" if unit == 1 else "a number"
        raise entry.error(name, f"must be {what} above 0, not {value!r}")
    return round(float(value) * unit)


def _figure(entry: Fields, name: str) -> float:
    return _checked(entry, name, entry.take(name, required=True))


def _figures(entry: Fields, name: str, count: int | None = None) -> tuple[float, ...]:
    value = entry.take(name, required=True)
    if not isinstance(value, list) or not value:
        raise entry.error(name, f"must be a list of figures, not {value!r}")
    if count is not None and len(value) != count:
        raise entry.error(name, f"has {len(value)} figures where there must be {count}")
    return tuple(_checked(entry, name, item) for item in value)


def _checked(entry: Fields, name: str, value: object) -> float:
    if not is_number(value) or cast(float, value) <= 0:
        raise entry.error(name, f"must be above 0, not {value!r}")
    return float(cast(float, value))


def _ascending_counts(entry: Fields, name: str) -> tuple[int, ...]:
    values = _figures(entry, name)
    if any(value != int(value) for value in values):
        raise entry.error(name, f"must be whole numbers, not {list(values)}")
    _check_rising(entry, name, values, strictly=True)
    return tuple(int(value) for value in values)


def _check_rising(entry: Fields, name: str, values: tuple[float, ...], *, strictly: bool) -> None:
    for before, after in pairwise(values):
        if after < before or (strictly and after == before):
            raise entry.error(name, f"must be in rising order, but {after:g} is after {before:g}")
