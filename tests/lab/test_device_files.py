"""Device files: the errors for bad files, and that the lab's own files match publications."""

from __future__ import annotations

import csv
import datetime
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from embstore.devices import Access
from pmemlab.errors import DeviceFileError
from pmemlab.model.devices import load_device
from pmemlab.model.devices.curves import LoadedLatencyRow
from pmemlab.model.devices.device_file import DeviceFile, read_device_file
from pmemlab.model.devices.loading import _FOLDER
from pmemlab.model.planning.tiers import device_role

_CANDIDATES = [
    parent / "shared" / "data" / "devices" for parent in Path(__file__).resolve().parents
]
PUBLISHED = next((folder for folder in _CANDIDATES if folder.is_dir()), _CANDIDATES[0])
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published measurements are not beside this clone"
)

Document = dict[str, Any]


def memory() -> Document:
    """Returns the document of a valid file of a memory."""
    return {
        "name": "mine",
        "title": "A memory of one's own",
        "kind": "memory",
        "capacity_gb": 64,
        "media_line_bytes": 64,
        "measured_on": {"cpu": "a CPU", "last_level_cache_mib": 32, "source": "here"},
        "sources": {"here": {"title": "a table", "url": "https://example.org", "what": "all"}},
        "idle_latency": [
            {"operation": "load", "pattern": "random", "value": 100, "unit": "ns", "source": "here"}
        ],
        "bandwidth": [
            {
                "operation": operation,
                "pattern": "random",
                "unit": "MB/s",
                "source": "here",
                "points": [
                    {"bytes": 64, "threads": [1, 2, 4], "values": [1000, 2000, 3000]},
                    {"bytes": 256, "threads": [1, 2, 4], "values": [2000, 4000, 6000]},
                ],
            }
            for operation in ("load", "store", "store-clwb", "ntstore")
        ],
    }


def disk() -> Document:
    """Returns the document of a valid file of a disk."""

    def curve(operation: str, pattern: str, size: int, in_flight: int, value: float) -> Document:
        return {
            "operation": operation,
            "pattern": pattern,
            "unit": "MB/s",
            "source": "here",
            "points": [{"bytes": size, "in_flight": [in_flight], "values": [value]}],
        }

    document = memory()
    del document["measured_on"]
    document["kind"] = "block"
    document["media_line_bytes"] = 4096
    document["idle_latency"][0]["operation"] = "read"
    document["bandwidth"] = [
        curve("read", "random", 4096, 32, 400),
        curve("write", "sequential", 131072, 32, 500),
    ]
    return document


def write(folder: Path, document: Document, name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def test_a_user_s_own_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    device = load_device(write(tmp_path, memory()))
    assert device.name == "mine"
    assert device.time_ns(Access.LOAD, 256, 4) == pytest.approx(256 * 4 / 6)
    assert load_device(write(tmp_path, disk())).time_ns(Access.FILE_READ, 4096, 1) > 0


def test_the_guide_s_file_is_complete(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "lab" / "docs" / "devices-and-plans.md"
    [text] = re.findall(r"```yaml\n(name:.*?)```", guide.read_text(), re.DOTALL)
    (tmp_path / "my-cxl.yaml").write_text(text)
    device = load_device(tmp_path / "my-cxl.yaml")
    assert device_role(device) == "PMEM"
    assert device.time_ns(Access.UPDATE, 256, 4) == pytest.approx(256 * 4 / 3)


def test_points_without_their_own_threads_use_the_curve_s(tmp_path: Path) -> None:
    document = memory()
    curve = document["bandwidth"][0]
    del curve["points"][0]["threads"]
    path = write(tmp_path, document)
    with pytest.raises(DeviceFileError, match=r"bandwidth\[0\].points\[0\].threads: is missing"):
        load_device(path)
    curve["threads"] = [1, 2, 5]
    device = load_device(write(tmp_path, document))
    assert device.bandwidth_mb_per_s("load", "random", 64, 5) == 3000
    assert device.bandwidth_mb_per_s("load", "random", 256, 4) == 6000
    curve["threads"] = [1, 2]
    with pytest.raises(DeviceFileError, match=r"points\[0\].values: has 3 figures .* must be 2"):
        load_device(write(tmp_path, document))


def test_units_are_converted(tmp_path: Path) -> None:
    document = memory()
    document["idle_latency"][0].update(value=0.25, unit="us")
    document["bandwidth"][0]["unit"] = "GB/s"
    for point in document["bandwidth"][0]["points"]:
        point["values"] = [value / 1000 for value in point["values"]]
    device = load_device(write(tmp_path, document))
    assert device.latency_ns("load", "random") == 250
    assert device.bandwidth_mb_per_s("load", "random", 64, 2) == pytest.approx(2000)


@pytest.mark.parametrize("day", ["2026-11-22", datetime.date(2026, 11, 22)])  # quoted, or not
def test_the_source_of_an_own_measurement_needs_no_url(tmp_path: Path, day: object) -> None:
    document = memory()
    document["sources"]["here"] = {"title": "here", "measured": day, "what": "all"}
    source = load_device(write(tmp_path, document)).sources["here"]
    assert source.url is None
    assert source.measured == "2026-11-22"


def remove(*path: str | int) -> Callable[[Document], None]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        del document[path[-1]]

    return change


def put(value: object, *path: str | int) -> Callable[[Document], None]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = value

    return change


POINT = ("bandwidth", 0, "points", 0)
LOADED_POINT = ("loaded_latency", 0, "points", 0)


def loaded() -> Document:
    """Returns the document of a valid file that has latency under load."""
    document = memory()
    document["loaded_latency"] = [
        {
            "operation": "load",
            "pattern": "random",
            "units": {"bandwidth": "MB/s", "latency": "ns"},
            "source": "here",
            "points": [{"threads": 1, "bandwidth": [100, 1000], "latency": [90, 120]}],
        }
    ]
    del document["bandwidth"][0]
    return document


def composition() -> Document:
    """Returns the document of a valid file of memory mode."""
    return {
        **yaml.safe_load((_FOLDER / "optane-100-x6-memory-mode.yaml").read_text()),
        "name": "mine",
    }


WRONG: dict[Callable[[], Document], list[tuple[Callable[[Document], None], str]]] = {
    memory: [
        (remove("title"), "title: is missing"),
        (remove("kind"), "kind: is missing"),
        (put("tape", "kind"), "kind: must be one of memory, block, gpu, memory-mode"),
        (remove("name"), "name: is missing"),
        (remove("capacity_gb"), "capacity_gb: is missing"),
        (put(-1, "capacity_gb"), "capacity_gb: must be a number above 0"),
        (put(1e-12, "capacity_gb"), "capacity_gb: must come to 1 byte or more"),
        (put(1e20, "capacity_gb"), "capacity_gb: must come to 1 byte or more and less than 8 EiB"),
        (remove("media_line_bytes"), "media_line_bytes: is missing"),
        (put(64.5, "media_line_bytes"), "media_line_bytes: must be a power of two"),
        (put(3, "media_line_bytes"), "media_line_bytes: must be a power of two"),
        (remove("measured_on"), "measured_on: is missing"),
        (remove("measured_on", "source"), r"measured_on.source: is missing"),
        (put(0, "measured_on", "lines_in_flight"), r"measured_on.lines_in_flight: must be"),
        (remove("sources"), "sources: is missing"),
        (remove("sources", "here", "url"), r"sources.here.url: is missing"),
        (remove("bandwidth"), "bandwidth: is missing: a device has at least one curve"),
        (remove("bandwidth", 0, "unit"), r"bandwidth\[0\].unit: is missing"),
        (put("furlongs", "bandwidth", 0, "unit"), r"bandwidth\[0\].unit: must be one of MB/s"),
        (remove("bandwidth", 0, "source"), r"bandwidth\[0\].source: is missing"),
        (put("hearsay", "bandwidth", 0, "source"), r"bandwidth\[0\].source: must be one of here"),
        (put("juggle", "bandwidth", 0, "operation"), r"bandwidth\[0\].operation: must be one of"),
        (put("zigzag", "bandwidth", 0, "pattern"), r"bandwidth\[0\].pattern: must be one of"),
        (put("store", "bandwidth", 0, "operation"), r"bandwidth\[1\].operation: there is a random"),
        (remove("bandwidth", 0, "points"), r"bandwidth\[0\].points: is missing"),
        (put([], "bandwidth", 0, "points"), r"bandwidth\[0\].points: must be a list of one"),
        (put(512, *POINT, "bytes"), r"points\[1\].bytes: 256 must be above 512"),
        (put([1, 4, 2], *POINT, "threads"), r"points\[0\].threads: must be whole numbers"),
        (put([1, 1, 2], *POINT, "threads"), r"points\[0\].threads: must be whole numbers"),
        (put([0.5, 1, 2], *POINT, "threads"), r"points\[0\].threads: must be whole numbers"),
        (
            put([1, -2, 3], *POINT, "values"),
            r"points\[0\].values\[1\]: must be .* above 0, .* not -2",
        ),
        (
            put([1, 0, 3], *POINT, "values"),
            r"points\[0\].values\[1\]: must be .* above 0, .* not 0",
        ),
        (put([1, "x", 3], *POINT, "values"), r"points\[0\].values\[1\]: must be .* not 'x'"),
        (
            put([1, float("nan"), 3], *POINT, "values"),
            r"points\[0\].values\[1\]: must be .* not nan",
        ),
        (put([1, 2], *POINT, "values"), r"points\[0\].values: has 2 figures .* must be 3"),
        (put(5, *POINT, "colour"), r"points\[0\].colour: is no field here"),
        (remove("idle_latency", 0, "unit"), r"idle_latency\[0\].unit: is missing"),
        (put(-5, "idle_latency", 0, "value"), r"idle_latency\[0\].value: must be a number above 0"),
        (
            put(1e300, "idle_latency", 0, "value"),
            r"idle_latency\[0\].value: must be .* not 1e\+300",
        ),
        (put("MB/s", "idle_latency", 0, "unit"), r"idle_latency\[0\].unit: must be one of ns"),
        (put(1, "colour"), "colour: is no field here"),
    ],
    disk: [
        (remove("idle_latency"), "idle_latency: is missing for random reads"),
        (put("load", "bandwidth", 0, "operation"), r"bandwidth\[0\].operation: must be one of"),
        (put({}, "measured_on"), "measured_on: is no field here"),
        (put([{}], "loaded_latency"), "loaded_latency: is no field here; there are"),
    ],
    loaded: [
        (remove("loaded_latency", 0, "units"), r"units: is missing"),
        (remove("loaded_latency", 0, "units", "latency"), r"units.latency: is missing"),
        (
            put([1000, 100], "loaded_latency", 0, "points", 0, "bandwidth"),
            r"bandwidth: must be in rising order",
        ),
        (
            put([120, 90], "loaded_latency", 0, "points", 0, "latency"),
            r"latency: must be in rising order",
        ),
    ],
    composition: [
        (put("nvme-p4510", "pmem"), "pmem: nvme-p4510 is no plain memory"),
        (put("optane-200-x6", "pmem"), "pmem: optane-200-x6: no random load"),
        (remove("cache", "size_gb"), "cache.size_gb: is missing"),
        (remove("cache", "source"), "cache.source: is missing"),
        (remove("media_accesses", "write", "hit"), "media_accesses.write.hit: is missing"),
        (put({"tape_read": 1}, "media_accesses", "read", "hit"), "tape_read: is no field"),
    ],
}


@pytest.mark.parametrize(
    ("made", "change", "field"),
    [(made, *wrong) for made, several in WRONG.items() for wrong in several],
)
def test_errors_name_the_file_and_the_field(
    tmp_path: Path,
    made: Callable[[], Document],
    change: Callable[[Document], None],
    field: str,
) -> None:
    document = made()
    load_device(write(tmp_path, document))
    change(document)
    path = write(tmp_path, document)
    with pytest.raises(DeviceFileError, match=rf"^{path}:(\d+:)? (.*\.)?{field}"):
        load_device(path)


def test_memory_mode_cannot_be_composed_of_itself(tmp_path: Path) -> None:
    path = write(tmp_path, {**composition(), "dram": "mine.yaml"})
    with pytest.raises(DeviceFileError, match=r"mine.yaml: dram: .* is no plain memory"):
        load_device(path)


def test_memory_mode_may_name_files_beside_its_own_file(tmp_path: Path) -> None:
    write(tmp_path, {**memory(), "name": "near"}, "near")
    document = {**composition(), "dram": "near.yaml"}
    device = load_device(write(tmp_path, document))
    assert device.cache is not None
    assert device.cache.hit_ns(Access.LOAD, 256, 4) == pytest.approx(256 * 4 / 6)


def test_a_file_that_is_missing_or_is_not_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceFileError, match=r"none\.yaml: can't be read"):
        load_device(tmp_path / "none.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("{")
    with pytest.raises(DeviceFileError, match="not YAML"):
        load_device(path)
    path.write_text("- 1")
    with pytest.raises(DeviceFileError, match="must be a mapping"):
        load_device(path)


# --- Published figures.


def device_file(name: str) -> DeviceFile:
    file = read_device_file(_FOLDER / f"{name}.yaml")
    assert isinstance(file, DeviceFile)
    return file


@needs_published
@pytest.mark.parametrize(
    ("name", "medium", "dimms"),
    [
        ("ddr4-2666-x6", "dram", "6"),
        ("optane-100-x1", "optane", "1"),
        ("optane-100-x6", "optane", "6"),
    ],
)
def test_bandwidths_are_the_published_medians(name: str, medium: str, dimms: str) -> None:
    curves = device_file(name).bandwidth
    left_out = 0
    compared = 0
    with (PUBLISHED / "optane-100-bandwidth.csv").open() as lines:
        for row in csv.DictReader(lines):
            if (row["medium"], row["dimms"]) != (medium, dimms):
                continue
            curve = curves[row["operation"], row["pattern"]]
            size_bytes, threads = int(row["access_bytes"]), int(row["threads"])
            kept = {
                (sizes.size_bytes, count): mb_per_s
                for sizes in curve.rows
                for count, mb_per_s in zip(sizes.threads, sizes.mb_per_s, strict=True)
            }
            if (size_bytes, threads) not in kept:
                left_out += 1
                assert (row["operation"], row["pattern"]) == ("load", "sequential")
                assert threads in (3, 6, 10, 14, 18, 20, 24)
                continue
            assert kept[size_bytes, threads] == pytest.approx(float(row["mb_per_s"]), abs=0.006)
            compared += 1
    assert compared > 400
    assert left_out == (35 if name == "optane-100-x6" else 0)


@needs_published
@pytest.mark.parametrize(
    ("name", "table"),
    [("cxl-asic", "cxl-asic-loaded-latency.csv"), ("ddr5-snc", "ddr5-loaded-latency.csv")],
)
def test_loaded_latencies_are_published_points_up_to_the_peak(name: str, table: str) -> None:
    published: dict[tuple[str, str, int], set[tuple[float, float]]] = {}
    with (PUBLISHED / table).open() as lines:
        for row in csv.DictReader(lines):
            key = (row["traffic"], row["pattern"], int(row["threads"]))
            point = (float(row["mb_per_s"]), float(row["latency_ns"]))
            published.setdefault(key, set()).add(point)
    operations = {"load": "read"}
    compared = 0
    for (operation, pattern), curve in device_file(name).loaded_latency.items():
        for kept in curve.rows:
            assert isinstance(kept, LoadedLatencyRow)
            points = published[operations.get(operation, operation), pattern, kept.threads]
            assert set(zip(kept.mb_per_s, kept.latency_ns, strict=True)) <= points
            assert len(kept.mb_per_s) >= 8  # 19 were published, from idle to the peak
            assert kept.latency_ns[0] == pytest.approx(min(ns for _, ns in points), rel=0.02)
            assert kept.mb_per_s[-1] >= 0.98 * max(mb_per_s for mb_per_s, _ in points)
            compared += len(kept.mb_per_s)
    assert compared > 400


def test_single_runs_with_few_threads_fit_the_rest_of_the_curve() -> None:
    """Random DRAM loads by fewer than 16 threads come from single runs of another year. With them,
    the bandwidth per thread must still fall as threads are added."""
    curve = device_file("ddr4-2666-x6").bandwidth["load", "random"]
    each = [curve.mb_per_s_at(4096, threads) / threads for threads in (1, 4, 8, 12, 16, 24)]
    assert each == sorted(each, reverse=True)
    assert statistics.fmean(each[:2]) < 1.5 * each[-2]
