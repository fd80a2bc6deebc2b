"""Devices that tests make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from embstore import Access

TimeOf = Callable[[Access, int, int], float]


@dataclass(frozen=True)
class ExampleCache:
    """A memory in front of a device, each access of which takes so long."""

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
    """time_of: of (access, size_bytes, threads), ns. alone: of an access, whatever it is; None: as
    long as it takes one thread."""

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
