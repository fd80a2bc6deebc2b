"""The table of a machine's memory. The facts are those of real guests; each case rounds some."""

from __future__ import annotations

import pytest
from recorded_facts import recorded_facts
from rich.console import Console

from pmemlab.errors import MissingFactError
from pmemlab.memory_resources import MemoryResources, memory_resources, memory_table
from pmemlab.topology import load_topology

_M = 1 << 20

_CASES: dict[str, tuple[dict[str, object], MemoryResources]] = {
    "dram": ({"ram_bytes": 895 * _M}, MemoryResources(895 * _M, 0, 0, 0, 896 * _M, 0)),
    "memory-mode": (
        {"ram_bytes": 1023 * _M, "memory_side_caches": [{"bytes": 256 * _M}]},
        MemoryResources(0, 1023 * _M, 0, 256 * _M, 256 * _M, 1024 * _M),
    ),
    "fsdax": (
        {"ram_bytes": 895 * _M, "persistent_bytes": 512 * _M},
        MemoryResources(895 * _M, 0, 512 * _M, 0, 896 * _M, 514 * _M),
    ),
    "fsdax-memmap": (
        {"ram_bytes": 1023 * _M, "declared_persistent_bytes": 512 * _M},
        MemoryResources(1023 * _M, 0, 512 * _M, 0, 1024 * _M, 512 * _M),
    ),
    "kmem-dax": (
        {"ram_bytes": 895 * _M, "persistent_bytes": 640 * _M, "kmem_bytes": 512 * _M},
        MemoryResources(895 * _M, 0, 640 * _M, 0, 896 * _M, 642 * _M),
    ),
    "nvme": ({"ram_bytes": 895 * _M}, MemoryResources(895 * _M, 0, 0, 0, 896 * _M, 0)),
    "sata": ({"ram_bytes": 895 * _M}, MemoryResources(895 * _M, 0, 0, 0, 896 * _M, 0)),
    "fsdax-nvme": (
        {"ram_bytes": 895 * _M},
        MemoryResources(895 * _M, 0, 128 * _M, 0, 896 * _M, 130 * _M),
    ),
    "interleaved": (
        {"ram_bytes": 895 * _M},
        MemoryResources(895 * _M, 0, 256 * _M, 0, 896 * _M, 260 * _M),
    ),
    "two-sockets": (
        {"ram_bytes": 895 * _M},
        MemoryResources(895 * _M, 0, 512 * _M, 0, 896 * _M, 516 * _M),
    ),
    "mixed-mode": (
        {"ram_bytes": 895 * _M},
        MemoryResources(0, 895 * _M, 256 * _M, 224 * _M, 224 * _M, (896 + 258) * _M),
    ),
    "cxl-ram": (
        {"ram_bytes": 895 * _M},
        MemoryResources(895 * _M, 512 * _M, 0, 0, 896 * _M, 512 * _M),
    ),
    "cxl-pmem": (
        {"ram_bytes": 895 * _M},
        MemoryResources(895 * _M, 0, 256 * _M, 0, 896 * _M, 257 * _M),
    ),
    "numa-cpuless": (
        {"ram_bytes": 1407 * _M, "node_bytes": {"0": 880 * _M, "1": 504 * _M}},
        MemoryResources(903 * _M, 504 * _M, 0, 0, 904 * _M, 504 * _M),
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_memory_is_listed_by_its_use(name: str) -> None:
    rounded, expected = _CASES[name]
    resources = memory_resources(load_topology(name), recorded_facts(name) | rounded)
    assert resources == expected
    assert resources.inaccessible_ddr >= 0
    assert resources.inaccessible_pmem >= 0


def test_the_table_has_ipmctl_s_rows_and_columns() -> None:
    facts = recorded_facts("fsdax") | _CASES["fsdax"][0]
    console = Console(width=100, record=True, quiet=False, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(memory_table(memory_resources(load_topology("fsdax"), facts)))
    lines = [[cell.strip() for cell in line.split("|")] for line in capture.get().splitlines()]
    assert lines[0] == ["MemoryType", "DDR", "PMemModule", "Total"]
    assert lines[2:] == [
        ["Volatile", "0.874 GiB", "0.000 GiB", "0.874 GiB"],
        ["AppDirect", "-", "0.500 GiB", "0.500 GiB"],
        ["Cache", "0.000 GiB", "-", "0.000 GiB"],
        ["Inaccessible", "0.001 GiB", "0.002 GiB", "0.003 GiB"],
        ["Physical", "0.875 GiB", "0.502 GiB", "1.377 GiB"],
    ]


def test_unreadable_memory_is_an_error_and_not_zeros() -> None:
    facts = recorded_facts("fsdax")
    del facts["persistent_bytes"]
    facts["unreadable"] = {"persistent_bytes": "/proc/iomem shows its addresses to root alone"}
    with pytest.raises(MissingFactError, match="to root alone"):
        memory_resources(load_topology("fsdax"), facts)
