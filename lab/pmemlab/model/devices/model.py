"""The interface of a device model: how long an access takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from embstore.devices import Access
from pmemlab.errors import LabError, NotPublishedError
from pmemlab.model.devices.device_file import DeviceFile, Kind, Source

__all__ = ["LINE_BYTES", "DeviceModel", "EngineConcurrency", "MemoryCache", "SingleFileDevice"]

LINE_BYTES = 64
_MAX_KNOWN_TIMES = 10_000


@dataclass(frozen=True)
class EngineConcurrency:
    """How much one thread of the engine has in flight.

    rows: rows whose lines are prefetched (the figures of look-ups and updates in engine/core).
    file_reads: requests that a batch has in flight at a disk with io_uring; 1 with pread.
    file_writes: 1, since appends are made one after the other.
    """

    rows: int = 8
    file_reads: int = 128
    file_writes: int = 1


class DeviceModel(ABC):
    """A device that tiers can lie on; implements `embstore.devices.Device`.

    title: a description. kind: memory, block (a disk) or gpu. capacity_bytes: of one unit, as it is
    sold. media_line_bytes: the least that the medium moves. notes: caveats about the figures.
    sources: of all figures, by id.
    """

    name: str
    title: str
    kind: Kind
    capacity_bytes: int
    media_line_bytes: int
    notes: tuple[str, ...]
    sources: Mapping[str, Source]

    @property
    def is_addressable(self) -> bool:
        """Whether the CPU can load from the device; if not, it can't be a first tier."""
        return self.kind == "memory"

    @property
    @abstractmethod
    def cpu_cache_bytes(self) -> int:
        """Last-level cache of the system that the device was measured in; 0 for disks."""

    @property
    def cache(self) -> MemoryCache | None:
        """The DRAM cache of memory mode; None for plain devices."""
        return None

    @property
    def bus(self) -> DeviceModel | None:
        """The bus between a GPU and its host; None for other devices."""
        return None

    def time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """Returns the nanoseconds that an access of `size_bytes` contiguous bytes takes one thread
        while `threads` threads make the same access, in steady state; n accesses take n times this.

        Raises LabError for an access that the device can't do, NotPublishedError if its file has no
        figure for it.
        """
        key = (access, size_bytes, threads)
        time_ns = self._known_times.get(key)
        if time_ns is None:
            self.check(access, size_bytes, threads)
            time_ns = self._time_ns(Access(access), size_bytes, threads)
            if len(self._known_times) >= _MAX_KNOWN_TIMES:
                self._known_times.clear()
            self._known_times[key] = time_ns
        return time_ns

    def alone_ns(self, access: Access, size_bytes: int) -> float:
        """Returns the nanoseconds from beginning to end of one access to the idle device.

        It is a lower bound for any number of accesses in flight together. Raises as `time_ns` does.
        """
        self.check(access, size_bytes, 1)
        return self._alone_ns(Access(access), size_bytes)

    @cached_property
    def _known_times(self) -> dict[tuple[Access, int, int], float]:
        """Caches times: tables touch few sizes, and pacing needs a time for each batch."""
        return {}

    @abstractmethod
    def _time_ns(self, access: Access, size_bytes: int, threads: int) -> float: ...

    @abstractmethod
    def _alone_ns(self, access: Access, size_bytes: int) -> float: ...

    def check(self, access: Access, size_bytes: int, threads: int) -> None:
        """Checks the arguments of `time_ns`, and raises as it does."""
        if access not in Access._value2member_map_:
            raise LabError(f"access: must be an embstore.devices.Access, not {access!r}")
        if size_bytes <= 0:
            raise LabError(f"size_bytes: must be above 0, not {size_bytes}")
        if threads <= 0:
            raise LabError(f"threads: must be above 0, not {threads}")
        if missing := self.missing(Access(access)):
            raise missing

    @abstractmethod
    def missing(self, access: Access) -> LabError | None:
        """Returns the error that `time_ns` raises for this access; None if it raises none."""

    @abstractmethod
    def bandwidth_mb_per_s(
        self, operation: str, pattern: str, size_bytes: int, threads: int
    ) -> float:
        """Returns the rate of all threads together, as published or interpolated.

        Raises NotPublishedError.
        """

    @abstractmethod
    def latency_ns(self, operation: str, pattern: str) -> float:
        """Returns the latency of one access to an idle device. Raises NotPublishedError."""


class SingleFileDevice(DeviceModel):
    """The common base of memories, disks and GPUs: all figures are in one file, `file`."""

    def __init__(self, file: DeviceFile, concurrency: EngineConcurrency) -> None:
        self.name = file.name
        self.title = file.title
        self.kind = file.kind
        self.capacity_bytes = file.capacity_bytes
        self.media_line_bytes = file.media_line_bytes
        self.notes = file.notes
        self.sources = file.sources
        self.file = file
        self._concurrency = concurrency

    def _unpublished(self, operation: str, pattern: str) -> NotPublishedError:
        return NotPublishedError(f"{self.name}: no {pattern} {operation} in {self.file.path}")

    def latency_ns(self, operation: str, pattern: str) -> float:
        if (operation, pattern) in self.file.idle_latency:
            return self.file.idle_latency[operation, pattern]
        raise NotPublishedError(
            f"{self.name}: no idle latency of a {pattern} {operation} in {self.file.path}"
        )


@dataclass(frozen=True)
class MemoryCache:
    """A direct-mapped write-back cache of DRAM in front of persistent memory.

    Each method returns the nanoseconds, as `DeviceModel.time_ns` does, of an access all of whose
    lines have that outcome.
    """

    size_bytes: int
    line_bytes: int
    _outcome_ns: Callable[[str, Access, int, int], float] = field(repr=False)

    def hit_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """The lines are in the cache."""
        return self._outcome_ns("hit", access, size_bytes, threads)

    def clean_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """The lines are not in the cache, and the evicted lines are clean."""
        return self._outcome_ns("clean_miss", access, size_bytes, threads)

    def dirty_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """The lines are not in the cache, and the evicted lines are written back."""
        return self._outcome_ns("dirty_miss", access, size_bytes, threads)
