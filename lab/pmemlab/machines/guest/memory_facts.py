"""The kernel's facts of CPUs and memory: nodes, distances, tiers, caches, address ranges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pmemlab.machines.guest.fact_reading import read_kernel_text, try_read

__all__ = ["cpus_of", "read_memory_facts"]

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")
_TIERS = Path("/sys/devices/virtual/memory_tiering")
_IOMEM = Path("/proc/iomem")
_ACPI_TABLES = Path("/sys/firmware/acpi/tables")
_INDEXING = {0: "direct-mapped", 1: "complex"}  # Documentation/admin-guide/mm/numaperf.rst
_WRITE_POLICY = {0: "write-back", 1: "write-through"}


def read_memory_facts() -> dict[str, object]:
    """Returns facts by the names in `fact_names`. Some may be `Unreadable`."""
    nodes = _numbers(_NODES / "online")
    with_cpus = _numbers(_NODES / "has_cpu")
    return {
        "cpus": try_read(lambda: _numbers(_CPUS / "online")),
        "socket_cpus": try_read(_socket_cpus),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "nodes": nodes,
        "nodes_with_cpus": with_cpus,
        "nodes_without_cpus": sorted(set(nodes) - set(with_cpus)),
        "node_sources": try_read(_node_sources),
        "node_bytes": {str(node): try_read(partial(_node_bytes, node)) for node in nodes},
        "distances": {str(node): try_read(partial(_distances, node, nodes)) for node in nodes},
        "slow_nodes": try_read(lambda: _slow_nodes(with_cpus)),
        "memory_side_caches": try_read(_memory_side_caches),
        "ram_bytes": try_read(lambda: _physical_bytes("System RAM")),
        "kmem_bytes": try_read(lambda: _physical_bytes("System RAM (kmem)")),
        "persistent_bytes": try_read(lambda: _physical_bytes("Persistent Memory")),
        "declared_persistent_bytes": try_read(
            lambda: _physical_bytes("Persistent Memory (legacy)")  # memmap= makes these
        ),
    }


def _numbers(path: Path) -> list[int]:
    """Returns a sysfs list such as "0-1,3". A kernel without NUMA has one node."""
    if not path.exists():
        return [0]
    ranges = (part.split("-") for part in read_kernel_text(path).split(",") if part)
    return [n for low, *high in ranges for n in range(int(low), int(high[0] if high else low) + 1)]


def cpus_of(node: int) -> set[int]:
    """Returns those CPUs of a node that this process may run on."""
    own = set(_numbers(_NODES / f"node{node}" / "cpulist")) if _NODES.exists() else {0}
    return own & os.sched_getaffinity(0)


def _socket_cpus() -> dict[str, list[int]]:
    sockets: dict[str, list[int]] = {}
    for cpu in _numbers(_CPUS / "online"):
        socket = read_kernel_text(_CPUS / f"cpu{cpu}" / "topology" / "physical_package_id")
        sockets.setdefault(socket, []).append(cpu)
    return sockets


def _node_sources() -> list[str]:
    """Returns what defines NUMA nodes: the firmware's table, the kernel's command line, or both."""
    options = [
        word
        for word in read_kernel_text(Path("/proc/cmdline")).split()
        if word.startswith("numa=fake")
    ]
    firmware = ["SRAT"] if (_ACPI_TABLES / "SRAT").exists() else []
    return firmware + (["numa=fake"] if options else [])


def _node_bytes(node: int) -> int:
    path = _NODES / f"node{node}" / "meminfo"
    for line in read_kernel_text(path).splitlines():
        if "MemTotal:" in line:
            return int(line.split()[-2]) << 10
    raise ValueError(f"{path} has no MemTotal")


def _distances(node: int, nodes: list[int]) -> dict[str, int]:
    path = _NODES / f"node{node}" / "distance"
    values = read_kernel_text(path).split() if path.exists() else ["10"]
    return {str(other): int(value) for other, value in zip(nodes, values, strict=True)}


def _slow_nodes(with_cpus: list[int]) -> list[int]:
    """Returns the nodes in a lower memory tier than every node with CPUs."""
    tiers = {
        int(folder.name.removeprefix("memory_tier")): _numbers(folder / "nodelist")
        for folder in _TIERS.glob("memory_tier[0-9]*")
    }
    fast = [rank for rank, nodes in tiers.items() if set(nodes) & set(with_cpus)]
    return sorted(n for rank, nodes in tiers.items() if fast and rank > max(fast) for n in nodes)


def _memory_side_caches() -> list[dict[str, object]]:
    """Returns memory-side caches by node and level; empty if there are none."""
    return [
        {
            "node": int(folder.parents[1].name.removeprefix("node")),
            "level": int(folder.name.removeprefix("index")),
            "bytes": int(read_kernel_text(folder / "size")),
            "line_bytes": int(read_kernel_text(folder / "line_size")),
            "indexing": _INDEXING.get(int(read_kernel_text(folder / "indexing")), "other"),
            "write_policy": _WRITE_POLICY.get(
                int(read_kernel_text(folder / "write_policy")), "other"
            ),
        }
        for folder in sorted(_NODES.glob("node*/memory_side_cache/index*"))
    ]


def _physical_bytes(name: str) -> int:
    """Returns the size of the physical address ranges of this name. Raises PermissionError."""
    ranges = list(_physical_ranges())
    if not any(high for _, high, _ in ranges):
        raise PermissionError(f"{_IOMEM} shows its addresses to root alone")
    return sum(high - low + 1 for low, high, found in ranges if found == name)


def _physical_ranges() -> Iterator[tuple[int, int, str]]:
    for line in _IOMEM.read_text().splitlines():
        bounds, _, name = line.strip().partition(" : ")
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        yield low, high, name
