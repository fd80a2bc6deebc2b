"""A machine's memory in the table of `ipmctl show -memoryresources`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich import box
from rich.table import Table

from pmemlab.proof import find_fact
from pmemlab.topology import Topology

__all__ = ["MemoryResources", "memory_resources", "memory_table"]

_GIB = 1 << 30


@dataclass(frozen=True)
class MemoryResources:
    """The use of a machine's memory, in bytes."""

    volatile_ddr: int
    volatile_pmem: int
    app_direct: int
    cache: int
    physical_ddr: int
    physical_pmem: int

    @property
    def inaccessible_ddr(self) -> int:
        return self.physical_ddr - self.volatile_ddr - self.cache

    @property
    def inaccessible_pmem(self) -> int:
        return self.physical_pmem - self.volatile_pmem - self.app_direct


def memory_resources(topology: Topology, facts: Mapping[str, object]) -> MemoryResources:
    """Returns how a machine's memory is used, by its facts. Values that a guest can't see come from
    the topology: how much memory is plugged in, and which plain memory stands in for PMem.

    Raises `MissingFactError` if one of the facts could not be read.
    """
    ram = _bytes(facts, "ram_bytes")
    declared = _bytes(facts, "declared_persistent_bytes")
    plugged_ram = topology.memory_bytes - declared
    disks = _total_bytes(facts, "disks.*.bytes")
    plugged_pmem = declared + sum(topology.backing_files.values()) - disks
    cache = _total_bytes(facts, "memory_side_caches.*.bytes")
    # A kmem node uses AppDirect capacity: ipmctl does not know of the node.
    app_direct = declared + _bytes(facts, "persistent_bytes")
    if cache:  # memory mode: the RAM is persistent memory, and DDR only caches it
        return MemoryResources(0, ram, app_direct, cache, cache, plugged_ram + plugged_pmem)
    if not plugged_pmem:
        nodes = sum(_bytes(facts, f"node_bytes.{node}") for node in topology.pmem.nodes)
        return MemoryResources(ram - nodes, nodes, 0, 0, plugged_ram - nodes, nodes)
    volatile_cxl = _total_bytes(facts, "cxl_memdevs.*.ram_bytes")
    return MemoryResources(ram, volatile_cxl, app_direct, 0, plugged_ram, plugged_pmem)


def memory_table(resources: MemoryResources) -> Table:
    """Returns a table with ipmctl's rows and columns."""
    r = resources
    table = Table("MemoryType", "DDR", "PMemModule", "Total", box=box.ASCII2, show_edge=False)
    rows: list[tuple[str, int | None, int | None]] = [
        ("Volatile", r.volatile_ddr, r.volatile_pmem),
        ("AppDirect", None, r.app_direct),
        ("Cache", r.cache, None),
        ("Inaccessible", r.inaccessible_ddr, r.inaccessible_pmem),
        ("Physical", r.physical_ddr, r.physical_pmem),
    ]
    for name, ddr, pmem in rows:
        table.add_row(name, *(_gib(value) for value in (ddr, pmem, (ddr or 0) + (pmem or 0))))
    return table


def _bytes(facts: Mapping[str, object], name: str) -> int:
    value = find_fact(facts, name)
    assert isinstance(value, int)
    return value


def _total_bytes(facts: Mapping[str, object], name: str) -> int:
    values = find_fact(facts, name)
    assert isinstance(values, list)
    return sum(values)


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / _GIB:.3f} GiB"
