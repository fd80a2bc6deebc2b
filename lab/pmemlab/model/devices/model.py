"""What every device answers: how long an access takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from embstore.devices import Access
from pmemlab.errors import LabError
from pmemlab.model.devices.device_file import Kind, Source

__all__ = ["LINE_BYTES", "DeviceModel", "EngineConcurrency", "MemoryCache"]

LINE_BYTES = 64
_MOST_KNOWN_TIMES = 10_000


@dataclass(frozen=True)
class EngineConcurrency:
    """How much one thread of the engine has in flight.

    rows: whose lines are fetched ahead of use (the look-up's and the updates' own figures in
        engine/core). file_reads: requests that a batch keeps at a disk, by io_uring; 1 by pread.
        file_writes: appends are one after the other.
    """

    rows: int = 8
    file_reads: int = 128
    file_writes: int = 1


class DeviceModel(ABC):
    """A device that tiers can be on, as `embstore.devices.Device` wants it.

    name; title: for people. kind: memory, block for disks, or gpu. capacity_bytes: of one unit, as
    it is sold. media_line_bytes: what the medium moves at least. notes: what its figures leave
    open. sources: of all figures, by id.
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
        """Whether the CPU can load from it; a disk can't be a first tier."""
        return self.kind == "memory"

    @property
    @abstractmethod
    def cpu_cache_bytes(self) -> int:
        """Last-level cache of the system that the device was measured in; 0 for disks."""

    @property
    def cache(self) -> MemoryCache | None:
        """Memory mode's DRAM before it; None for plain devices."""
        return None

    @property
    def bus(self) -> DeviceModel | None:
        """The bus between a GPU and its host; None for other devices."""
        return None

    def time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """Nanoseconds that one access of so many contiguous bytes takes one of `threads` threads
        that are all at the device with the same access, in steady state; n take n times this.

        Raises LabError for an access that the device can't do, NotPublishedError where its file
        has no figure for it.
        """
        key = (access, size_bytes, threads)
        time_ns = self._known_times.get(key)
        if time_ns is None:
            self.check(access, size_bytes, threads)
            time_ns = self._time_ns(Access(access), size_bytes, threads)
            if len(self._known_times) >= _MOST_KNOWN_TIMES:
                self._known_times.clear()
            self._known_times[key] = time_ns
        return time_ns

    def alone_ns(self, access: Access, size_bytes: int) -> float:
        """Nanoseconds from beginning to end of one access, while nothing else is at the device.

        What n accesses take that are in flight together is no less, however few they are. Raises as
        `time_ns` does.
        """
        self.check(access, size_bytes, 1)
        return self._alone_ns(Access(access), size_bytes)

    @cached_property
    def _known_times(self) -> dict[tuple[Access, int, int], float]:
        """Tables touch few sizes, over and over: who paces them asks for each batch."""
        return {}

    @abstractmethod
    def _time_ns(self, access: Access, size_bytes: int, threads: int) -> float: ...

    @abstractmethod
    def _alone_ns(self, access: Access, size_bytes: int) -> float: ...

    def check(self, access: Access, size_bytes: int, threads: int) -> None:
        """Raises as `time_ns` does."""
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
        """What `time_ns` raises for this access; None where it doesn't."""

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


@dataclass(frozen=True)
class MemoryCache:
    """A direct-mapped write-back cache of DRAM before persistent memory.

    Each method: nanoseconds of one access whose lines all fare so, as `DeviceModel.time_ns`.
    """

    size_bytes: int
    line_bytes: int
    _outcome_ns: Callable[[str, Access, int, int], float] = field(repr=False)

    def hit_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """Its lines are in the cache."""
        return self._outcome_ns("hit", access, size_bytes, threads)

    def clean_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """They aren't, and what gives way to them needn't be written back."""
        return self._outcome_ns("clean_miss", access, size_bytes, threads)

    def dirty_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """They aren't, and what gives way to them is written back."""
        return self._outcome_ns("dirty_miss", access, size_bytes, threads)
