"""Tables of the times of accesses on devices, as the core takes them, and the times of phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.devices import Access, Device, MemoryCache
from embstore.errors import InvalidArgumentError
from embstore.table import checks

__all__ = ["OUTCOMES", "DeviceTable", "check_device", "phase_times", "tabulate"]

MEMORY_ACCESSES = (
    Access.LOAD,
    Access.UPDATE,
    Access.STORE,
    Access.STORE_FLUSHED,
    Access.STORE_STREAMED,
)
FILE_ACCESSES = (Access.FILE_READ, Access.FILE_WRITE)
# The times of calls of other sizes are interpolated.
FILE_SIZES = tuple(1 << bits for bits in range(9, 25))
MAX_THREADS = 64
LINE_BYTES = 64
# The outcomes of accesses in caches; all other accesses missed only the CPU's caches. As Outcome in
# engine/pacing/cache_hierarchy.h.
OUTCOMES = ("hits", "dirtied", "clean_misses", "dirty_misses")
_METHODS = ("time_ns", "alone_ns")

# Where bytes lie that miss the CPU's caches; as Device::Where in engine/pacing/device.h.
_THERE, _CLEAN_MISS, _DIRTY_MISS = range(3)


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """A table of the ns of one access, by where the bytes are, access, size and threads.

    Tables are equal if their contents are.
    """

    name: str
    cpu_cache_bytes: int
    memory_cache_bytes: int
    sizes: tuple[int, ...]  # ascending
    times_ns: NDArray[np.float64]  # (3, accesses, sizes, threads); NaN: not used by such a tier
    alone_ns: NDArray[np.float64]  # (accesses, sizes)

    def core(self) -> _core.DeviceTuple:
        return (
            self.name,
            self.cpu_cache_bytes,
            self.memory_cache_bytes,
            list(self.sizes),
            self.times_ns,
            self.alone_ns,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceTable):
            return NotImplemented
        *scalars, times_ns, alone_ns = self.core()
        *other_scalars, other_times_ns, other_alone_ns = other.core()
        return (
            scalars == other_scalars
            and np.array_equal(times_ns, other_times_ns, equal_nan=True)
            and np.array_equal(alone_ns, other_alone_ns, equal_nan=True)
        )


def check_device(argument: str, device: object) -> Device:
    """Returns `device`. Raises InvalidArgumentError if it isn't a Device."""
    missing = [
        name
        for name in ("name", "is_addressable", "cpu_cache_bytes", "cache", *_METHODS)
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
    for name in _METHODS:
        method = getattr(device, name)
        if not callable(method):
            raise InvalidArgumentError(f"{argument}.{name} must be a method, got {method!r}")
    checks.flag(f"{argument}.is_addressable", device.is_addressable)
    checks.integer(f"{argument}.cpu_cache_bytes", device.cpu_cache_bytes, at_least=0, unit="bytes")
    if device.cache is not None:
        _check_cache(f"{argument}.cache", device.cache)
    return device


def _check_cache(argument: str, cache: object) -> None:
    if not isinstance(cache, MemoryCache):
        raise InvalidArgumentError(
            f"{argument} must be an embstore.devices.MemoryCache or None, "
            f"got {type(cache).__name__}"
        )
    checks.integer(f"{argument}.size_bytes", cache.size_bytes, at_least=LINE_BYTES, unit="bytes")
    if cache.line_bytes != LINE_BYTES:
        raise InvalidArgumentError(
            f"{argument}.line_bytes must be {LINE_BYTES}, the lines that are simulated, "
            f"got {cache.line_bytes!r}"
        )


def tabulate(argument: str, device: Device, sizes: Sequence[int], in_files: bool) -> DeviceTable:
    """Returns a table with the device's time of every access, size and number of threads.

    sizes: bytes; a tier in files uses FILE_SIZES instead. Raises InvalidArgumentError if a time
    isn't finite and above 0.
    """
    cache = None if in_files else device.cache
    sizes = FILE_SIZES if in_files else tuple(sorted(set(sizes)))
    accesses = FILE_ACCESSES if in_files else MEMORY_ACCESSES
    times = np.full((3, len(Access), len(sizes), MAX_THREADS), np.nan)
    alone = np.full((len(Access), len(sizes)), np.nan)
    requests: list[tuple[int, str, Callable[[Access, int, int], float]]]
    if cache is None:
        requests = [(_THERE, "time_ns", device.time_ns)]
    else:
        requests = [
            (_THERE, "cache.hit_ns", cache.hit_ns),
            (_CLEAN_MISS, "cache.clean_miss_ns", cache.clean_miss_ns),
            (_DIRTY_MISS, "cache.dirty_miss_ns", cache.dirty_miss_ns),
        ]
    called = f"{argument}: {device.name}"
    for access in accesses:
        for i, size in enumerate(sizes):
            alone[access, i] = _time(f"{called}.alone_ns", device.alone_ns, access, size)
            for where, method, time_ns in requests:
                for threads in range(1, MAX_THREADS + 1):
                    times[where, access, i, threads - 1] = _time(
                        f"{called}.{method}", time_ns, access, size, threads
                    )
    return DeviceTable(
        name=device.name,
        cpu_cache_bytes=0 if in_files else int(device.cpu_cache_bytes),
        memory_cache_bytes=0 if cache is None else int(cache.size_bytes),
        sizes=tuple(sizes),
        times_ns=times,
        alone_ns=alone,
    )


def _time(function_name: str, time_ns: Callable[..., float], access: Access, *sizes: int) -> float:
    """Returns a checked time. sizes: the size in bytes, and the threads if it depends on them."""
    call = f"{function_name}(Access.{access.name}, {', '.join(map(str, sizes))})"
    try:
        time_taken = float(time_ns(access, *sizes))
    except Exception as error:
        raise InvalidArgumentError(f"{call} can't be had: {error}") from error
    if not math.isfinite(time_taken) or time_taken <= 0:
        raise InvalidArgumentError(f"{call} must be finite and above 0, got {time_taken}")
    return time_taken


def phase_times(
    device: Device, phases: NDArray[Any], outcomes: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Returns times as `embstore.phase_times_ns` does. outcomes: (phases,), accesses of each."""
    times = np.zeros(len(phases))
    in_files = np.isin(phases["access"], FILE_ACCESSES)
    counts = phases["accesses"].astype(np.float64)
    shares = np.stack([outcomes[name] / counts for name in OUTCOMES], axis=1)
    shares = np.column_stack((1.0 - shares.sum(axis=1), shares))
    for which, of_files in ((in_files, True), (~in_files, False)):
        if not which.any():
            continue
        part = phases[which]
        access_sizes = np.unique(
            np.ceil(part["bytes"] / part["accesses"]).astype(np.int64)
        ).tolist()
        table = tabulate("device", device, access_sizes, of_files)
        times[which] = _core.phase_times_ns(
            table.core(),
            access=np.ascontiguousarray(part["access"]),
            threads=np.ascontiguousarray(part["threads"]),
            accesses=np.ascontiguousarray(part["accesses"]),
            bytes=np.ascontiguousarray(part["bytes"]),
            rounds=np.ascontiguousarray(part["rounds"]),
            outcomes=np.ascontiguousarray(shares[which]),
        )
    return times
