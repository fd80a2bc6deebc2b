"""What the engine must know of a device so that a tier can take as long as on it.

The engine counts how it touches the rows of each tier (`EmbeddingVariable.stats`), and knows no
device. Whoever does describes one as a `Device`, which `StorageOption.devices` takes, a tier each.
"""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable

__all__ = ["Access", "Device", "MemoryCache"]


class Access(enum.IntEnum):
    """How bytes of a tier are touched; the numbers are those of `engine/core/access/access.h`."""

    LOAD = 0  # random reads of whole or part rows into the CPU
    UPDATE = 1  # load and store in place, left to the CPU's caches to write back
    STORE = 2  # a row stored anew, left to the caches
    STORE_FLUSHED = 3  # stored and written back line by line (clwb), in place or not
    STORE_STREAMED = 4  # non-temporal stores
    FILE_READ = 5  # one read call on a file, at a random place
    FILE_WRITE = 6  # one write call on a file, appended


@runtime_checkable
class MemoryCache(Protocol):
    """Memory in front of a device, as in Optane's memory mode: direct-mapped, written back.

    The times are of one access as `Device.time_ns` has them, that misses the CPU's caches and finds
    its line here (hit), another line in its place that is as the device has it (clean miss), or one
    that must be written back first (dirty miss).
    """

    @property
    def size_bytes(self) -> int: ...
    @property
    def line_bytes(self) -> int: ...
    def hit_ns(self, access: Access, size_bytes: int, threads: int) -> float: ...
    def clean_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float: ...
    def dirty_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float: ...


@runtime_checkable
class Device(Protocol):
    """A memory or a disk by the time that accesses take on it."""

    @property
    def name(self) -> str:
        """Is told with every figure that depends on the device."""
        ...

    @property
    def is_addressable(self) -> bool:
        """Loads and stores reach it. False: files, which can't be a first tier."""
        ...

    @property
    def cpu_cache_bytes(self) -> int:
        """The last-level cache in front of it; 0: none, as for files."""
        ...

    @property
    def cache(self) -> MemoryCache | None:
        """What lies between the CPU's caches and the device; None: nothing."""
        ...

    def time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """Nanoseconds that one access of so many contiguous bytes takes one of `threads` threads
        that are all at the device with the same access.

        In steady state: n accesses take n times this, with as many fetches in flight as the engine
        keeps. The CPU's caches aren't counted: every line comes from the device.
        """
        ...

    def alone_ns(self, access: Access, size_bytes: int) -> float:
        """Nanoseconds from beginning to end of one access, while nothing else is at the device.

        Accesses that are in flight together take no less, however few they are. The CPU's caches
        don't have it; the memory in front of the device, where there is one, does.
        """
        ...
