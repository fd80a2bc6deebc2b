"""Memory mode: all memory is persistent memory, and DRAM is its direct-mapped cache.

A request for a line makes one or more media accesses (`media_accesses` in the file), one after the
other: the tag is first read together with the line from DRAM; on a miss the line is fetched from
persistent memory and put into DRAM, and the evicted line is written back if it is dirty. So the
times add up. A plain store of the CPU is a read request now, and later a write request that hits in
the DRAM cache.
"""

from __future__ import annotations

from embstore.devices import Access
from pmemlab.errors import DeviceFileError, LabError, NotPublishedError
from pmemlab.model.devices.device_file import CompositionFile
from pmemlab.model.devices.memory_device import MemoryDevice
from pmemlab.model.devices.model import DeviceModel, MemoryCache

__all__ = ["MemoryModeDevice"]

# The requests of an access: the one that may hit or miss, and those that follow later and hit.
_REQUESTS: dict[Access, tuple[str, tuple[str, ...]]] = {
    Access.LOAD: ("read", ()),
    Access.UPDATE: ("read", ("write",)),
    Access.STORE: ("read", ("write",)),
    Access.STORE_FLUSHED: ("read", ("write",)),
    Access.STORE_STREAMED: ("write", ()),
}


class MemoryModeDevice(DeviceModel):
    def __init__(self, file: CompositionFile, dram: DeviceModel, pmem: DeviceModel) -> None:
        for field, device in (("dram", dram), ("pmem", pmem)):
            if not isinstance(device, MemoryDevice):
                raise DeviceFileError(f"{file.path}: {field}: {device.name} is no plain memory")
            for access in (Access.LOAD, Access.STORE_STREAMED):
                problem = device.missing(access)
                if problem is not None:
                    raise DeviceFileError(f"{file.path}: {field}: {problem}")
        self.name = file.name
        self.title = file.title
        self.kind = "memory"
        self.capacity_bytes = pmem.capacity_bytes
        self.media_line_bytes = pmem.media_line_bytes
        self.notes = file.notes
        # The parts' sources get the part's name as a prefix, since both may have the same id.
        parts = {
            f"{part.name}: {source_id}": source
            for part in (dram, pmem)
            for source_id, source in part.sources.items()
        }
        self.sources = {**file.sources, **parts}
        self.file = file
        self.dram = dram
        self.pmem = pmem

    @property
    def cpu_cache_bytes(self) -> int:
        return self.pmem.cpu_cache_bytes

    @property
    def cache(self) -> MemoryCache:
        return MemoryCache(self.file.cache.size_bytes, self.file.cache.line_bytes, self._outcome_ns)

    def missing(self, access: Access) -> LabError | None:
        if access in _REQUESTS:
            return None
        return LabError(
            f"{self.name}: is volatile memory and holds no files, so it has no {access.name}"
        )

    def _time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """Returns the time if every access is a clean miss; `cache` takes hits into account."""
        return self._outcome_ns("clean_miss", access, size_bytes, threads)

    def _alone_ns(self, access: Access, size_bytes: int) -> float:
        """Returns the time of a hit. A miss takes the times of its media accesses."""
        own, _ = _REQUESTS[access]
        return sum(
            count * device.alone_ns(media_access, size_bytes)
            for medium, count in self.file.media_accesses[own, "hit"].items()
            if count
            for device, media_access in (self._medium(medium),)
        )

    def _outcome_ns(self, outcome: str, access: Access, size_bytes: int, threads: int) -> float:
        self.check(access, size_bytes, threads)
        own, later = _REQUESTS[access]
        time_ns = self._request_ns(own, outcome, size_bytes, threads)
        for request in later:
            time_ns += self._request_ns(request, "hit", size_bytes, threads)
        return time_ns

    def _request_ns(self, request: str, outcome: str, size_bytes: int, threads: int) -> float:
        counts = self.file.media_accesses[request, outcome]
        return sum(
            count * self._medium_ns(medium, size_bytes, threads)
            for medium, count in counts.items()
            if count
        )

    def _medium_ns(self, medium: str, size_bytes: int, threads: int) -> float:
        device, access = self._medium(medium)
        return device.time_ns(access, size_bytes, threads)

    def _medium(self, medium: str) -> tuple[DeviceModel, Access]:
        device = self.dram if medium.startswith("dram") else self.pmem
        # The controller writes whole lines, as streamed stores do.
        return device, Access.LOAD if medium.endswith("read") else Access.STORE_STREAMED

    def bandwidth_mb_per_s(
        self, operation: str, pattern: str, size_bytes: int, threads: int
    ) -> float:
        raise self._depends_on_hits_error(
            f"{pattern} {operation} of {size_bytes} bytes by {threads} threads"
        )

    def latency_ns(self, operation: str, pattern: str) -> float:
        raise self._depends_on_hits_error(f"{pattern} {operation}")

    def _depends_on_hits_error(self, access: str) -> NotPublishedError:
        return NotPublishedError(
            f"{self.name}: a {access} depends on what hits; "
            f"ask {self.dram.name} and {self.pmem.name}"
        )
