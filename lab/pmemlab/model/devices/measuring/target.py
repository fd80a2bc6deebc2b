"""The target of a measurement: a NUMA node, a folder of memory, or a folder on a disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pmemlab.errors import MeasuringError
from pmemlab.machines.guest.memory_facts import cpus_of
from pmemlab.mounts import MEMORY_FILE_SYSTEMS, mount_of

__all__ = [
    "FolderTarget",
    "NodeTarget",
    "Target",
    "cpu_name",
    "find_target",
    "last_level_cache",
    "node_names",
    "on_cpus",
]

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class NodeTarget:
    """Memory of a NUMA node. bound: whether memory must be bound to it, as the system has other
    nodes.

    has_cpus: whether the node has CPUs. cpus: the node's CPUs, or the nearest node's; threads run
    there.
    """

    node: int
    bound: bool
    has_cpus: bool
    cpus: frozenset[int]
    total_bytes: int
    free_bytes: int
    is_memory: ClassVar[bool] = True


@dataclass(frozen=True)
class FolderTarget:
    """A folder. is_memory: whether its files are memory (DAX, tmpfs); else they are on a disk."""

    folder: Path
    is_memory: bool
    file_system: str
    total_bytes: int
    free_bytes: int


Target = NodeTarget | FolderTarget


def find_target(text: str) -> Target:
    """Returns the target for "node0" or for a folder's path. Raises MeasuringError."""
    if re.fullmatch(r"node[0-9]+", text):
        return _find_node(int(text[4:]))
    folder = Path(text)
    if not text or not folder.is_dir():
        raise MeasuringError(
            f"{text or repr(text)}: is neither a folder nor a NUMA node; there are "
            f"{', '.join(node_names())}, and any folder on the disk or the dax mount in question"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise MeasuringError(f"{text}: can't be written; give a folder in which you may make files")
    mount = mount_of(folder.resolve())
    space = os.statvfs(folder)
    return FolderTarget(
        folder,
        mount.is_dax or mount.filesystem in MEMORY_FILE_SYSTEMS,
        mount.filesystem,
        space.f_blocks * space.f_frsize,
        space.f_bavail * space.f_frsize,
    )


def node_names() -> list[str]:
    """Returns the directories of NUMA nodes in /sys/devices/system/node, by number."""
    names = [path.name for path in _NODES.glob("node[0-9]*")]
    return sorted(names, key=lambda name: int(name[4:])) or ["node0"]


def _find_node(node: int) -> NodeTarget:
    names = node_names()
    if f"node{node}" not in names:
        raise MeasuringError(f"node{node}: is no NUMA node here; there are {', '.join(names)}")
    total, free = _node_memory(node)
    if total == 0:
        raise MeasuringError(f"node{node}: has no memory; give another of {', '.join(names)}")
    own_cpus = _NODES / f"node{node}" / "cpulist"
    has_cpus = not own_cpus.exists() or own_cpus.read_text().strip() != ""
    return NodeTarget(node, len(names) > 1, has_cpus, _nearest_cpus(node), total, free)


def _node_memory(node: int) -> tuple[int, int]:
    """Returns the node's total and free bytes."""
    path = _NODES / f"node{node}" / "meminfo"
    text = path.read_text() if path.exists() else Path("/proc/meminfo").read_text()
    figures = {
        match[1]: int(match[2]) * 1024 for match in re.finditer(r"(\w+):\s+([0-9]+) kB", text)
    }
    return figures["MemTotal"], figures["MemFree"]


def _nearest_cpus(node: int) -> frozenset[int]:
    """Returns the CPUs of the nearest node that has some, the node itself first."""
    allowed = frozenset(os.sched_getaffinity(0))
    distances = _NODES / f"node{node}" / "distance"
    if not distances.exists():
        return allowed
    other_nodes = [int(name[4:]) for name in node_names()]
    near = sorted(zip(map(int, distances.read_text().split()), other_nodes, strict=True))
    for _, other in near:
        if cpus := cpus_of(other):
            return frozenset(cpus)
    return allowed


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """Restricts this thread, and threads and processes that it starts, to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def last_level_cache() -> int:
    """Returns the bytes of a CPU's largest cache. Raises MeasuringError if the system hides it."""
    sizes = []
    for path in sorted(_CPUS.glob("cpu[0-9]*/cache/index*/size")):
        match = re.fullmatch(r"([0-9]+)([KMG])", path.read_text().strip())
        if match:
            sizes.append(int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]])
    if not sizes:
        raise MeasuringError(
            "the size of the CPU's caches can't be read; give it with --last-level-cache 32M"
        )
    return max(sizes)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
