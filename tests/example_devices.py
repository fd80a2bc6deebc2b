"""Devices that tests make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from embstore import Access

TimeOf = Callable[[Access, int, int], float]


@dataclass(frozen=True)
class ExampleCache:
    """A cache in front of a device. Each kind of access takes a fixed time, in ns."""

    size_bytes: int
    hit: float
    clean_miss: float
    dirty_miss: float
    line_bytes: int = 64

    def hit_ns(self, *_: int) -> float:
        return self.hit

    def clean_miss_ns(self, *_: int) -> float:
        return self.clean_miss

    def dirty_miss_ns(self, *_: int) -> float:
        return self.dirty_miss


@dataclass(frozen=True)
class ExampleDevice:
    """A device whose access times the test gives.

    time_of: a function of (access, size_bytes, threads) that returns ns. alone: ns of any single
    access; None: as long as time_of says for one thread.
    """

    name: str
    time_of: TimeOf = field(compare=False)
    is_addressable: bool = True
    cpu_cache_bytes: int = 0
    cache: ExampleCache | None = None
    alone: float | None = field(default=None, compare=False)

    def time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        return self.time_of(access, size_bytes, threads)

    def alone_ns(self, access: Access, size_bytes: int) -> float:
        return self.time_of(access, size_bytes, 1) if self.alone is None else self.alone
