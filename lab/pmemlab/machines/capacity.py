"""Memory and disk: how much a machine takes, and how much this computer has left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pmemlab.errors import MissingRequirementError
from pmemlab.topology import Topology

__all__ = [
    "EMULATOR_BYTES",
    "free_memory_bytes",
    "gibibytes_text",
    "machine_bytes",
    "max_parallel_machines",
    "media_bytes",
    "missing_memory",
    "missing_space",
]

EMULATOR_BYTES = 430 << 20
"""QEMU's memory beside its guest's: mostly the code that TCG translates."""

_MAX_PARALLEL_MACHINES = 4
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMORY_USED = Path("/sys/fs/cgroup/memory.current")


def max_parallel_machines() -> int:
    """Returns how many machines a run of scenarios uses at a time: one per core, and no more than
    fit in a small computer's memory.
    """
    return min(os.cpu_count() or 1, _MAX_PARALLEL_MACHINES)


def media_bytes(topology: Topology) -> int:
    """Returns the bytes that a machine's DIMMs and disks take when they are full."""
    return sum(topology.backing_files.values())


def machine_bytes(topology: Topology) -> int:
    """Returns the bytes that a machine takes if its media lie in memory."""
    return topology.memory_bytes + media_bytes(topology) + EMULATOR_BYTES


def free_memory_bytes() -> int:
    """Returns the bytes that programs may still take here, within the control group's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # ValueError: "max"
        free = min(free, int(_MEMORY_LIMIT.read_text()) - int(_MEMORY_USED.read_text()))
    return free


def missing_memory(needed_bytes: int, purpose: str) -> Iterable[MissingRequirementError]:
    free = free_memory_bytes()
    if free < needed_bytes:
        yield MissingRequirementError(
            f"{gibibytes_text(needed_bytes)} of free memory for {purpose}: {gibibytes_text(free)} "
            "are free",
            "end what else uses it",
        )


def missing_space(
    folder: Path, needed_bytes: int, purpose: str, remedy: str
) -> Iterable[MissingRequirementError]:
    """Yields what is missing if the folder's file system has fewer free bytes than needed_bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        yield MissingRequirementError(
            f"{gibibytes_text(needed_bytes)} free in {folder} for {purpose}: "
            f"{gibibytes_text(free)} are free",
            remedy,
        )


def gibibytes_text(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
