"""Simple device models for tests of plans and predictions: each is a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from embstore.devices import Access
from pmemlab.errors import LabError


@dataclass(frozen=True)
class Dram:
    """Memory mode's DRAM cache. A hit takes `hit` ns, a miss `miss` ns."""

    size_bytes: int
    hit: float
    miss: float
    line_bytes: int = 64

    def hit_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        _check(access, size_bytes, threads)
        return self.hit

    def clean_miss_ns(self, *_: int) -> float:
        raise AssertionError("memory mode evicts only dirty lines here")

    def dirty_miss_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        _check(access, size_bytes, threads)
        return self.miss


def _check(access: Access, size_bytes: int, threads: int) -> None:
    """Checks the arguments that the planner passes to every device."""
    assert access in Access
    assert isinstance(size_bytes, int)
    assert isinstance(threads, int)
    assert min(size_bytes, threads) >= 1


@dataclass(frozen=True)
class Device:
    """A device whose access takes `latency` ns, or longer if the threads exceed its bandwidth."""

    name: str
    latency: float = 100.0
    bytes_a_ns: float = 100.0  # of all threads together
    is_addressable: bool = True
    cpu_cache_bytes: int = 0
    media_line_bytes: int = 64
    cache: Dram | None = None
    bus: Device | None = None
    publishes_latency: bool = True

    def time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        assert self.is_addressable == (access < Access.FILE_READ)
        _check(access, size_bytes, threads)
        return max(self.latency, threads * size_bytes / self.bytes_a_ns)

    def alone_ns(self, access: Access, size_bytes: int) -> float:
        _check(access, size_bytes, 1)
        return self.latency

    def latency_ns(self, operation: str, pattern: str) -> float:
        assert (operation, pattern) == ("load", "random")
        if not self.publishes_latency:
            raise LabError(f"{self.name}: no latency was published")
        return self.latency


@dataclass(frozen=True)
class FixedTimeDevice:
    """A device whose accesses each take `each_ns`."""

    name: str
    each_ns: float
    is_addressable: bool = True
    cpu_cache_bytes: int = 0
    cache: None = None

    def time_ns(self, *_: int) -> float:
        return self.each_ns

    def alone_ns(self, *_: int) -> float:
        return self.each_ns


DRAM = Device("dram")
PMEM = Device("pmem", latency=300.0, bytes_a_ns=20.0, media_line_bytes=256)
CXL = Device("cxl", latency=240.0, bytes_a_ns=40.0)
DISK = Device("disk", latency=2_000.0, bytes_a_ns=3.0, is_addressable=False)
MEMORY_MODE = Device(
    "memory-mode", media_line_bytes=256, cache=Dram(16 << 20, hit=100.0, miss=900.0)
)
