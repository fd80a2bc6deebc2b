"""The interface of a device that paces a tier: how long each access takes on it.

The engine counts how it touches the rows of each tier (`EmbeddingVariable.stats`), and knows no
devices. A program describes a device as a `Device`; `StorageOption.devices` takes one per tier.
"""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable

__all__ = ["Access", "Device", "MemoryCache"]


class Access(enum.IntEnum):
    """How bytes of a tier are touched; the numbers are those of `engine/core/access/access.h`."""

    LOAD = 0  # random reads of whole or part rows into the CPU
    UPDATE = 1  # load and store in place; the CPU's caches write back later
    STORE = 2  # a row stored anew; the caches write back later
    STORE_FLUSHED = 3  # a store that is written back line by line (clwb), in place or not
    STORE_STREAMED = 4  # non-temporal stores
    FILE_READ = 5  # one read call on a file, at a random place
    FILE_WRITE = 6  # one write call on a file, appended


@runtime_checkable
class MemoryCache(Protocol):
    """A memory that caches a device, as in Optane's memory mode: direct-mapped, write-back.

    The times are those of one access that misses the CPU's caches, in the sense of
    `Device.time_ns`. A hit finds its line here; a clean miss finds another, unchanged line in its
    place; a dirty miss finds a changed line, which must be written back first.
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
    """A memory or a disk, described by the times of accesses."""

    @property
    def name(self) -> str:
        """The name, which is reported with every figure that depends on the device."""
        ...

    @property
    def is_addressable(self) -> bool:
        """Whether loads and stores reach it. False: files, which can't be a first tier."""
        ...

    @property
    def cpu_cache_bytes(self) -> int:
        """The bytes of the last-level cache in front of it; 0: none, as for files."""
        ...

    @property
    def cache(self) -> MemoryCache | None:
        """The memory between the CPU's caches and the device, or None."""
        ...

    def time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        """Returns the nanoseconds that one access of size_bytes contiguous bytes takes a thread,
        while `threads` threads, this one included, make such accesses.

        The time is that of the steady state: n accesses take n times as long, with as many fetches
        in flight as the engine keeps. The CPU's caches don't count: every line comes from the
        device.
        """
        ...

    def alone_ns(self, access: Access, size_bytes: int) -> float:
        """Returns the nanoseconds from beginning to end of one access to an idle device.

        Accesses that are in flight together take no less, however few they are. The access misses
        the CPU's caches, but hits the memory in front of the device, if there is one.
        """
        ...
