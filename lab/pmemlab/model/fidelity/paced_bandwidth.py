"""Measures bandwidth through real tiers that are paced by a device whose file lacks the figure.

The device gets its published curve without all figures of an access size and of a number of
threads. Threads then look up rows of that size in a table whose tier is paced by it, and their
bandwidth is compared with the figure that was left out.

Pacing makes a tier slower, never faster, and the engine's own work adds to it. So the device runs
in slow motion: its times are multiplied by a factor that makes this computer, by a run of the same
threads without pacing, twenty times as fast as the device. The measured bandwidth is multiplied by
the same factor.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import embstore as es
from pmemlab.errors import LabError
from pmemlab.model.devices import DeviceModel, EngineConcurrency, load_device
from pmemlab.model.devices.memory_device import MemoryDevice
from pmemlab.model.fidelity.measured import Comparison

__all__ = ["POINTS", "MeasuringEffort", "Point", "SlowedDevice", "compare_paced", "without_point"]

_LOAD = ("load", "random")
_BATCH = 2048


@dataclass(frozen=True)
class Point:
    """A measurement: random loads of rows of `row_bytes` by `threads` threads."""

    device: str
    row_bytes: int
    threads: int

    def __str__(self) -> str:
        return f"{self.device}, {self.row_bytes:,} bytes, {self.threads} threads"


@dataclass(frozen=True)
class MeasuringEffort:
    """How long to measure. seconds: about the length of a run. repetitions: runs, whose median
    counts. margin: how many times as fast as the slowed device this computer must be.
    """

    seconds: float = 0.5
    repetitions: int = 5
    margin: float = 20.0


@dataclass(frozen=True)
class SlowedDevice:
    """A device each of whose accesses takes `times` times as long."""

    device: DeviceModel
    times: float

    @property
    def name(self) -> str:
        return f"{self.device.name} / {self.times:g}"

    @property
    def is_addressable(self) -> bool:
        return self.device.is_addressable

    @property
    def cpu_cache_bytes(self) -> int:
        return self.device.cpu_cache_bytes

    @property
    def cache(self) -> None:
        return None

    def time_ns(self, access: es.Access, size_bytes: int, threads: int) -> float:
        return self.device.time_ns(access, size_bytes, threads) * self.times

    def alone_ns(self, access: es.Access, size_bytes: int) -> float:
        return self.device.alone_ns(access, size_bytes) * self.times


POINTS = tuple(
    Point(device, row_bytes, threads)
    for device in ("optane-100-x1", "optane-100-x6", "ddr4-2666-x6")
    for row_bytes in (128, 256, 512, 4096)
    for threads in (2, 4, 8)
)


def without_point(device: DeviceModel, row_bytes: int, threads: int) -> tuple[MemoryDevice, float]:
    """Returns the device without the figures of that size or of that number of threads and without
    caches, and the removed figure in MB/s. Raises LabError if it isn't published, or if no figures
    are left on either side of it.
    """
    if not isinstance(device, MemoryDevice) or _LOAD not in device.file.bandwidth:
        raise LabError(f"{device.name}: has no published bandwidth of random loads")
    curve = device.file.bandwidth[_LOAD]
    published = {(size, count): mb_per_s for size, count, mb_per_s in curve.points()}
    rest = curve.without(row_bytes)
    rest = None if rest is None else rest.without(threads=threads)
    if (row_bytes, threads) not in published or rest is None or not rest.covers(row_bytes, threads):
        raise LabError(
            f"{device.name}: {row_bytes} bytes by {threads} threads don't lie between published "
            "figures"
        )
    assert device.file.system is not None
    file = dataclasses.replace(
        device.file,
        bandwidth={**device.file.bandwidth, _LOAD: rest},
        system=dataclasses.replace(device.file.system, last_level_cache_bytes=0),
    )
    return MemoryDevice(file, EngineConcurrency()), published[row_bytes, threads]


def compare_paced(
    points: Sequence[Point], effort: MeasuringEffort, on_point: Callable[[str], object]
) -> tuple[list[Comparison], list[str]]:
    """Returns comparisons, and what was left out and why. on_point: called before each point.
    Raises LabError.
    """
    comparisons: list[Comparison] = []
    left_out: list[str] = []
    for point in points:
        on_point(str(point))
        try:
            device, published = without_point(
                load_device(point.device), point.row_bytes, point.threads
            )
        except LabError as error:
            left_out.append(str(error))
            continue
        unpaced_mb_per_s = _mb_per_s(point, None, published, effort.seconds / 5)
        times = max(1, math.ceil(effort.margin * published / unpaced_mb_per_s))
        slow = SlowedDevice(device, times)
        got = [
            times * _mb_per_s(point, slow, published / times, effort.seconds)
            for _ in range(effort.repetitions)
        ]
        median = statistics.median(got)
        comparisons.append(
            Comparison(
                f"{point.device}, random load, {point.row_bytes:,} bytes, {point.threads} threads",
                published,
                median,
                "MB/s",
                effort.repetitions,
                (max(got) - min(got)) / median * 100,
                f"{times} times as slow",
                _predicted_mb_per_s(device, point),
            )
        )
    return comparisons, left_out


def _predicted_mb_per_s(device: MemoryDevice, point: Point) -> float:
    return device.file.bandwidth[_LOAD].mb_per_s_at(point.row_bytes, point.threads)


def _mb_per_s(
    point: Point, device: SlowedDevice | None, expected_mb_per_s: float, seconds: float
) -> float:
    """Returns the bytes that the tier's counters say were loaded, divided by the threads' wall
    time.
    """
    dim = point.row_bytes // 4
    rows = max(64, (256 << 10) // point.row_bytes)
    batches = max(
        2, round(seconds * expected_mb_per_s * 1e6 / (_BATCH * point.row_bytes * point.threads))
    )
    devices = [] if device is None else [device]
    with es.get_embedding_variable(
        "paced",
        dim,
        optimizer=es.optimizers.SGD(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=es.StorageOption(devices=devices)),
    ) as variable:
        variable.apply_gradients(np.arange(rows), np.ones((rows, dim), np.float32))
        start = threading.Barrier(point.threads + 1)
        random = np.random.default_rng(1)
        ids_of_threads = [random.integers(0, rows, _BATCH) for _ in range(point.threads)]

        def look_up(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
            start.wait()
            for _ in range(batches):
                variable.lookup(ids)

        threads = [threading.Thread(target=look_up, args=(ids,)) for ids in ids_of_threads]
        for thread in threads:
            thread.start()
        loaded_before = _loaded_bytes(variable)
        start.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        return (_loaded_bytes(variable) - loaded_before) / took / 1e6


def _loaded_bytes(variable: es.EmbeddingVariable) -> int:
    return sum(
        int(count["bytes"])
        for tier in variable.stats()["tiers"]
        for count in tier["accesses"]
        if count["access"] == es.Access.LOAD
    )
