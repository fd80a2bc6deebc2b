"""Measures a memory's loads, stores, flushed stores and streamed stores, by size and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from embstore.bench._yardsticks import MemoryOperation, MemoryYardstick
from embstore.errors import EmbStoreError, MissingDeviceError
from pmemlab.errors import MeasuringError
from pmemlab.model.devices.device_file import Curve
from pmemlab.model.devices.measuring.figures import Advance, Figures, median_rate, rounds_text
from pmemlab.model.devices.measuring.target import FolderTarget, NodeTarget, on_cpus

__all__ = [
    "MEMORY_SIZES",
    "cpus_of",
    "measure_memory",
    "memory_steps",
    "min_memory_bytes",
    "thread_counts",
]

MEMORY_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 65536)
_SEQUENTIAL_SIZES = (64, 4096, 65536)
_OPERATIONS = {
    "load": MemoryOperation.LOAD,
    "store": MemoryOperation.STORE,
    "store-clwb": MemoryOperation.STORE_FLUSHED,
    "ntstore": MemoryOperation.STORE_STREAMED,
}


def thread_counts(cpus: int) -> tuple[int, ...]:
    """Returns the powers of two below the number of CPUs, and that number: each thread has
    a CPU.
    """
    counts = [1]
    while counts[-1] * 2 < cpus:
        counts.append(counts[-1] * 2)
    return tuple(counts) if cpus == counts[-1] else (*counts, cpus)


def memory_steps(threads: Sequence[int]) -> int:
    """Returns how often `measure_memory` calls `advance`."""
    return 2 + len(_OPERATIONS) * len(threads) * (len(MEMORY_SIZES) + len(_SEQUENTIAL_SIZES))


def min_memory_bytes(cpus: int) -> int:
    """Returns the least memory in which each CPU's thread has bytes of its own."""
    return max(*MEMORY_SIZES, *_SEQUENTIAL_SIZES) * cpus


def measure_memory(
    target: NodeTarget | FolderTarget, size_bytes: int, seconds: float, advance: Advance
) -> Figures:
    """Measures a memory. seconds: per figure. Raises MeasuringError."""
    with on_cpus(cpus_of(target)):
        threads = thread_counts(len(os.sched_getaffinity(0)))
        memory = _yardstick(target, size_bytes)
        figures = Figures(
            "memory",
            f"over {size_bytes >> 20} MiB, {rounds_text(seconds)}, by what a thread does while it "
            "runs",
        )
        for pattern in ("random", "sequential"):
            advance(f"idle latency, {pattern}")
            figures.idle_latency_ns["load", pattern] = memory.latency_ns(
                pattern == "random", seconds
            )
        for curve, size, count in _planned_figures(threads):
            operation, pattern = curve
            advance(f"{pattern} {operation} of {size:,} bytes, {count} threads")
            parameters = _OPERATIONS[operation], pattern == "random", size, count
            try:
                rate = median_rate(partial(memory.mb_per_s, *parameters), seconds)
            except MissingDeviceError:  # an old CPU has no clwb: its file has no such curve
                note = "This CPU has no clwb, so stores that are flushed couldn't be measured."
                if note not in figures.notes:
                    figures.notes.append(note)
                continue
            figures.bandwidth.setdefault(curve, {})[size, count] = rate
    if isinstance(target, FolderTarget) and not memory.is_synced:
        figures.notes.append(
            f"{target.folder} is no dax mount with MAP_SYNC, so these are the figures of "
            f"{target.file_system} in plain memory."
        )
    return figures


def _planned_figures(threads: Sequence[int]) -> Iterator[tuple[Curve, int, int]]:
    for operation in _OPERATIONS:
        for pattern, sizes in (("random", MEMORY_SIZES), ("sequential", _SEQUENTIAL_SIZES)):
            for size in sizes:
                for count in threads:
                    yield (operation, pattern), size, count


def _yardstick(target: NodeTarget | FolderTarget, size_bytes: int) -> MemoryYardstick:
    try:
        if isinstance(target, FolderTarget):
            return MemoryYardstick(size_bytes, directory=str(target.folder))
        return MemoryYardstick(size_bytes, node=target.node if target.bound else -1)
    except MissingDeviceError as error:
        assert isinstance(target, NodeTarget)
        raise MeasuringError(
            f"node{target.node}: {error}; where a container forbids it, run it outside of the "
            f"container, or measure the node's memory through a folder: mount -t tmpfs -o "
            f"mpol=bind:{target.node} tmpfs FOLDER"
        ) from error
    except EmbStoreError as error:
        raise MeasuringError(f"{error}; take less with --size") from error


def cpus_of(target: NodeTarget | FolderTarget) -> frozenset[int]:
    """Returns the CPUs to measure on: for a folder's memory, those that this process may run on."""
    return target.cpus if isinstance(target, NodeTarget) else frozenset(os.sched_getaffinity(0))
