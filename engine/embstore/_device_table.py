"""Devices as the core takes them: tables of how long accesses take, and what they say of phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import _checks
from embstore.devices import Access, Device, MemoryCache
from embstore.errors import InvalidArgumentError

__all__ = ["MEMORY_ACCESSES", "DeviceTable", "check_device", "phase_times", "tabulate"]

MEMORY_ACCESSES = (
    Access.LOAD,
    Access.UPDATE,
    Access.STORE,
    Access.STORE_FLUSHED,
    Access.STORE_STREAMED,
)
FILE_ACCESSES = (Access.FILE_READ, Access.FILE_WRITE)
# Between these, calls' times are interpolated.
FILE_SIZES = tuple(1 << bits for bits in range(9, 25))
MOST_THREADS = 64
LINE_BYTES = 64

# Where bytes are that the CPU's caches don't have; as Device::Where in engine/core/access/device.h.
_THERE, _CLEAN_MISS, _DIRTY_MISS = range(3)


@dataclass(frozen=True)
class DeviceTable:
    """How long one access takes, in ns, by where the bytes are, access, size and threads."""

    name: str
    cpu_cache_bytes: int
    memory_cache_bytes: int
    sizes: tuple[int, ...]  # ascending
    times_ns: NDArray[np.float64]  # (3, accesses, sizes, threads); NaN: isn't asked for

    def core(self) -> tuple[str, int, int, list[int], NDArray[np.float64]]:
        return (
            self.name,
            self.cpu_cache_bytes,
            self.memory_cache_bytes,
            list(self.sizes),
            self.times_ns,
        )

    def look_up(
        self,
        where: int,
        access: NDArray[np.int32],
        size_bytes: NDArray[np.float64],
        threads: NDArray[np.int32],
    ) -> NDArray[np.float64]:
        """As Device::time_ns() in the core, of many accesses."""
        sizes = np.array(self.sizes, np.float64)
        thread = np.clip(threads, 1, MOST_THREADS) - 1
        above = np.searchsorted(sizes, size_bytes)
        upper = np.minimum(above, len(sizes) - 1)
        lower = np.maximum(upper - 1, 0)

        def at(size: NDArray[np.intp]) -> NDArray[np.float64]:
            times: NDArray[np.float64] = self.times_ns[where, access, size, thread]
            return times

        width = np.where(upper == lower, 1.0, sizes[upper] - sizes[lower])
        part = np.where(upper == lower, 1.0, (size_bytes - sizes[lower]) / width)
        between = at(lower) + part * (at(upper) - at(lower))
        times = np.where(above == 0, at(np.zeros_like(upper)), between)
        beyond = above == len(sizes)
        return np.where(beyond, at(upper) * size_bytes / sizes[-1], times)


def check_device(argument: str, device: object) -> Device:
    """Raises InvalidArgumentError for what is none."""
    missing = [
        name
        for name in ("name", "is_addressable", "cpu_cache_bytes", "cache", "time_ns")
        if not hasattr(device, name)
    ]
    if missing or not isinstance(device, Device):
        raise InvalidArgumentError(
            f"{argument} must be an embstore.devices.Device or None, got {type(device).__name__}, "
            f"which has no {missing[0] if missing else 'times'}"
        )
    if not isinstance(device.name, str) or not device.name:
        raise InvalidArgumentError(
            f"{argument}.name must be a string that isn't empty, got {device.name!r}"
        )
    if not callable(device.time_ns):
        raise InvalidArgumentError(f"{argument}.time_ns must be a method, got {device.time_ns!r}")
    _checks.flag(f"{argument}.is_addressable", device.is_addressable)
    _checks.integer(f"{argument}.cpu_cache_bytes", device.cpu_cache_bytes, at_least=0, unit="bytes")
    if device.cache is not None:
        _check_cache(f"{argument}.cache", device.cache)
    return device


def _check_cache(argument: str, cache: object) -> None:
    if not isinstance(cache, MemoryCache):
        raise InvalidArgumentError(
            f"{argument} must be an embstore.devices.MemoryCache or None, "
            f"got {type(cache).__name__}"
        )
    _checks.integer(f"{argument}.size_bytes", cache.size_bytes, at_least=LINE_BYTES, unit="bytes")
    if cache.line_bytes != LINE_BYTES:
        raise InvalidArgumentError(
            f"{argument}.line_bytes must be {LINE_BYTES}, the lines that are simulated, "
            f"got {cache.line_bytes!r}"
        )


def tabulate(argument: str, device: Device, sizes: Sequence[int], in_files: bool) -> DeviceTable:
    """Asks the device for every access of a tier, size and number of threads.

    sizes: bytes; of a tier in files FILE_SIZES serve. Raises InvalidArgumentError where a time
    isn't one.
    """
    cache = None if in_files else device.cache
    sizes = FILE_SIZES if in_files else tuple(sorted(set(sizes)))
    times = np.full((3, len(Access), len(sizes), MOST_THREADS), np.nan)
    asked: list[tuple[int, str, Callable[[Access, int, int], float]]]
    if cache is None:
        asked = [(_THERE, "time_ns", device.time_ns)]
    else:
        asked = [
            (_THERE, "cache.hit_ns", cache.hit_ns),
            (_CLEAN_MISS, "cache.clean_miss_ns", cache.clean_miss_ns),
            (_DIRTY_MISS, "cache.dirty_miss_ns", cache.dirty_miss_ns),
        ]
    for where, method, time_ns in asked:
        for access in FILE_ACCESSES if in_files else MEMORY_ACCESSES:
            for i, size in enumerate(sizes):
                for threads in range(1, MOST_THREADS + 1):
                    times[where, access, i, threads - 1] = _time(
                        f"{argument}: {device.name}.{method}", time_ns, access, size, threads
                    )
    return DeviceTable(
        name=device.name,
        cpu_cache_bytes=0 if in_files else int(device.cpu_cache_bytes),
        memory_cache_bytes=0 if cache is None else int(cache.size_bytes),
        sizes=tuple(sizes),
        times_ns=times,
    )


def _time(
    what: str,
    time_ns: Callable[[Access, int, int], float],
    access: Access,
    size: int,
    threads: int,
) -> float:
    call = f"{what}(Access.{access.name}, {size}, {threads})"
    try:
        told = float(time_ns(access, size, threads))
    except Exception as error:
        raise InvalidArgumentError(f"{call} can't be had: {error}") from error
    if not math.isfinite(told) or told <= 0:
        raise InvalidArgumentError(f"{call} must be finite and above 0, got {told}")
    return told


def phase_times(
    device: Device, phases: NDArray[Any], outcomes: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """As `embstore.recording.phase_times_ns`; outcomes: accesses of each, (phases,)."""
    times = np.zeros(len(phases))
    in_files = np.isin(phases["access"], FILE_ACCESSES)
    for which, of_files in ((in_files, True), (~in_files, False)):
        if not which.any():
            continue
        part = phases[which]
        counts = part["accesses"].astype(np.float64)
        sizes = part["bytes"] / counts
        asked = np.unique(np.ceil(sizes).astype(np.int64)).tolist()
        table = tabulate("device", device, asked, of_files)

        def one(
            where: int,
            access: NDArray[np.int32] | Access,
            table: DeviceTable = table,
            part: NDArray[Any] = part,
            sizes: NDArray[np.float64] = sizes,
        ) -> NDArray[np.float64]:
            return table.look_up(where, np.broadcast_to(access, len(part)), sizes, part["threads"])

        there = one(_THERE, part["access"])
        of_part = {name: counts_of[which] for name, counts_of in outcomes.items()}
        missed = counts - sum(of_part.values())
        total = missed * there
        if not of_files:
            total += of_part["dirtied"] * np.maximum(0.0, there - one(_THERE, Access.LOAD))
        if device.cache is not None and not of_files:
            total += of_part["clean_misses"] * one(_CLEAN_MISS, part["access"])
            total += of_part["dirty_misses"] * one(_DIRTY_MISS, part["access"])
        times[which] = total
    return times
