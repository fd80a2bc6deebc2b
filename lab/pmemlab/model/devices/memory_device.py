"""A memory that the CPU loads from and stores to.

The time of an access is the larger of two bounds:

- *bandwidth*: size x threads / bandwidth of all threads, from the published curve of that access at
  that size and number of threads. The curve counts requested bytes, so it already includes the cost
  of bytes that the medium moves in addition (a 64-byte load from a 256-byte line).
- *latency*: idle latency / rows in flight. The curves were measured with as many fetches in flight
  as a core allows; the engine fetches some rows ahead, which may be fewer.

An access alone takes the idle latency, or the time by one thread's bandwidth if that is longer or
no latency was published.

If latency under load was published instead of bandwidth by size, one bound replaces both: the fixed
point of the engine's fetches in flight and the curve (`LoadedLatencyCurve`).
"""

from __future__ import annotations

from embstore.devices import Access
from pmemlab.errors import NotPublishedError
from pmemlab.model.devices.curves import LoadedLatencyCurve
from pmemlab.model.devices.device_file import Curve, DeviceFile
from pmemlab.model.devices.model import LINE_BYTES, EngineConcurrency, SingleFileDevice

__all__ = ["MemoryDevice"]

_RANDOM = "random"
_MIXED: Curve = ("read:write 1:1", _RANDOM)

# The published stores that model an access; the first that the file has is used.
_STORES: dict[Access, tuple[Curve, ...]] = {
    # A store fetches its line first and writes it back later, as an update does.
    Access.UPDATE: (("store", _RANDOM), _MIXED),
    Access.STORE: (("store", _RANDOM), _MIXED),
    # Lines are written back at once rather than later: as many lines move.
    Access.STORE_FLUSHED: (("store-clwb", _RANDOM), _MIXED),
    Access.STORE_STREAMED: (("ntstore", _RANDOM),),
    # On a DAX mount, write(2) makes the kernel's streamed stores, one after the other.
    Access.FILE_WRITE: (("ntstore", "sequential"), ("ntstore", _RANDOM)),
}
_LOAD: Curve = ("load", _RANDOM)
# The curve whose idle latency an access alone takes; the first that the file has is used. Plain
# stores have none: the thread goes on while the stored line lies in its caches.
_LATENCY_CURVES: dict[Access, tuple[Curve, ...]] = {
    Access.LOAD: (_LOAD,),
    Access.UPDATE: (_LOAD,),
    Access.STORE: (),
    Access.STORE_FLUSHED: (("store-clwb", _RANDOM), ("store-clwb", "sequential")),
    Access.STORE_STREAMED: (("ntstore", _RANDOM), ("ntstore", "sequential")),
    Access.FILE_READ: (_LOAD,),
    Access.FILE_WRITE: (("ntstore", "sequential"), ("ntstore", _RANDOM)),
}


class MemoryDevice(SingleFileDevice):
    def __init__(self, file: DeviceFile, concurrency: EngineConcurrency) -> None:
        assert file.system is not None
        super().__init__(file, concurrency)
        self._system = file.system

    @property
    def cpu_cache_bytes(self) -> int:
        return self._system.last_level_cache_bytes

    def missing(self, access: Access) -> NotPublishedError | None:
        needed: list[tuple[Curve, ...]] = []
        if access in (Access.LOAD, Access.UPDATE, Access.FILE_READ):
            needed.append((_LOAD,))
        if access in _STORES:
            needed.append(_STORES[access])
        for curves in needed:
            if not any(self._has_curve(curve) for curve in curves):
                operation, pattern = curves[0]
                return NotPublishedError(
                    f"{self.name}: no {pattern} {operation} by size and threads was published "
                    f"({self.file.path}); take a device that has it, or measure your own with "
                    "`pmemlab model measure`"
                )
        return None

    def _time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        lines_bytes = -(-size_bytes // LINE_BYTES) * LINE_BYTES  # memory moves whole lines
        times = []
        if access in (Access.LOAD, Access.UPDATE, Access.FILE_READ):
            times.append(self._load_ns(lines_bytes, threads))
        if access in _STORES:
            curve = next(curve for curve in _STORES[access] if self._has_curve(curve))
            times.append(self._store_ns(curve, lines_bytes, threads))
        # An update's store finds its line in the cache. A published store includes that fetch, so
        # the update's load must not be counted again: hence max, not sum.
        return max(times)

    def _alone_ns(self, access: Access, size_bytes: int) -> float:
        one_thread_ns = self.time_ns(access, size_bytes, 1)
        for curve in _LATENCY_CURVES[access]:
            if curve in self.file.idle_latency:
                return max(one_thread_ns, self.file.idle_latency[curve])
            if curve == _LOAD and curve in self.file.loaded_latency:
                # The latency with the fewest threads and the least traffic.
                return max(one_thread_ns, self.file.loaded_latency[curve].rows[0].latency_ns[0])
        return one_thread_ns

    def _load_ns(self, size_bytes: int, threads: int) -> float:
        loaded = self.file.loaded_latency.get(_LOAD)
        if loaded is not None:
            return self._fixed_point_ns(loaded, size_bytes, threads, traffic=1)
        curve = self.file.bandwidth[_LOAD]
        bandwidth_ns = size_bytes * threads * 1e3 / curve.mb_per_s_at(size_bytes, threads)
        idle_ns = self.file.idle_latency.get(_LOAD)
        if idle_ns is None:
            return bandwidth_ns
        return max(bandwidth_ns, idle_ns / self._concurrency.rows)

    def _store_ns(self, curve: Curve, size_bytes: int, threads: int) -> float:
        if curve in self.file.bandwidth:
            mb_per_s = self.file.bandwidth[curve].mb_per_s_at(size_bytes, threads)
            return size_bytes * threads * 1e3 / mb_per_s
        loaded = self.file.loaded_latency[curve]
        if curve == _MIXED:
            return self._fixed_point_ns(loaded, size_bytes, threads, traffic=2)
        # A streamed store fetches nothing, so only the measured bandwidth bounds it.
        return size_bytes * threads * 1e3 / loaded.max_mb_per_s(threads)

    def _fixed_point_ns(
        self, loaded: LoadedLatencyCurve, size_bytes: int, threads: int, traffic: int
    ) -> float:
        lines = size_bytes // LINE_BYTES
        in_flight = self._concurrency.rows * lines
        if self._system.lines_in_flight is not None:
            in_flight = min(in_flight, self._system.lines_in_flight)
        mb_per_s = loaded.steady_mb_per_s(in_flight * threads, threads, traffic)
        return size_bytes * traffic * threads * 1e3 / mb_per_s

    def bandwidth_mb_per_s(
        self, operation: str, pattern: str, size_bytes: int, threads: int
    ) -> float:
        curve = (operation, pattern)
        if curve in self.file.bandwidth:
            return self.file.bandwidth[curve].mb_per_s_at(size_bytes, threads)
        if curve in self.file.loaded_latency:
            return self.file.loaded_latency[curve].max_mb_per_s(threads)
        if curve in self.file.ceilings:
            return self.file.ceilings[curve]
        raise self._unpublished(operation, pattern)

    def _has_curve(self, curve: Curve) -> bool:
        return curve in self.file.bandwidth or curve in self.file.loaded_latency
