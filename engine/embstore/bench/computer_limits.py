"""The greatest rates of this computer's memory and disk, to compare rates of rows with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embstore.bench._yardsticks import FileYardstick, MemoryOperation, MemoryYardstick
from embstore.errors import StorageError

__all__ = ["LIMIT_COUNT", "Limit", "measure"]

LINE_BYTES = 64
BLOCK_BYTES = 4096
DISK_DEPTHS = (1, 32)
# Far larger than a processor's caches.
MEMORY_BYTES = 1 << 30
FILE_BYTES = 512 << 20
MEASURED_FOR_S = 0.5


@dataclass(frozen=True)
class Limit:
    """A measured limit. rate: in `unit`; None if it can't be measured here, for the reason
    `why_not`.
    """

    what: str
    unit: str
    rate: float | None
    why_not: str = ""


LIMIT_COUNT = 2 * 2 + 1 + len(DISK_DEPTHS)


def measure(folder: Path, on_limit: Callable[[], None]) -> list[Limit]:
    """Returns all limits. folder: gets a file of 512 MiB, which is removed again. on_limit: called
    after each limit, LIMIT_COUNT times.
    """
    limits: list[Limit] = []
    for limit in (*_memory_limits(), *_disk_limits(folder)):
        limits.append(limit)
        on_limit()
    return limits


def _memory_limits() -> Iterator[Limit]:
    memory = MemoryYardstick(MEMORY_BYTES, -1)

    def mb_per_s(random: bool, threads: int) -> float:
        return memory.mb_per_s(MemoryOperation.LOAD, random, LINE_BYTES, threads, MEASURED_FOR_S)

    for threads in (1, len(os.sched_getaffinity(0))):
        by = "one thread" if threads == 1 else f"{threads} threads"
        yield Limit(f"memory read in order, {by}", "GB/s", mb_per_s(False, threads) / 1e3)
        lines = mb_per_s(True, threads) / LINE_BYTES
        yield Limit(f"lines of {LINE_BYTES} bytes read at random, {by}", "M/s", lines)
    yield Limit(
        "a load that waits for the one before", "ns", memory.latency_ns(True, MEASURED_FOR_S)
    )


def _disk_limits(folder: Path) -> Iterator[Limit]:
    whats = [f"reads of {BLOCK_BYTES} bytes at random, {depth} in flight" for depth in DISK_DEPTHS]
    try:
        disk = FileYardstick(FILE_BYTES, str(folder), direct=True)
    except StorageError as error:
        for what in whats:
            yield Limit(what, "k/s", None, str(error))
        return
    for what, depth in zip(whats, DISK_DEPTHS, strict=True):
        rate = disk.mb_per_s(False, True, BLOCK_BYTES, depth, MEASURED_FOR_S)
        yield Limit(what, "k/s", 1e3 * rate / BLOCK_BYTES)
