"""Reads a machine's facts, in the machine: `python -m pmemlab.guest.probe [--path P] [--memkind]
[--ssd P]`.

Everything is asked of the kernel or of the libraries that programs use, nothing is taken from the
topology. The facts are one JSON document on stdout; what can't be read is null there.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import json
import mmap
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from pmemlab.placement import device_number, page_nodes

__all__ = ["read_facts"]

_NODES = Path("/sys/devices/system/node")
_TIERS = Path("/sys/devices/virtual/memory_tiering")
_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000  # asm-generic/mman-common.h
_PMEM_FILE_CREATE = 1  # libpmem.h
_TOUCHED_BYTES = 1 << 20
_INDEXING = {0: "direct-mapped", 1: "complex"}  # Documentation/admin-guide/mm/numaperf.rst
_WRITE_POLICY = {0: "write-back", 1: "write-through"}


def read_facts(path: str | None, memkind: bool, ssd: str | None = None) -> dict[str, object]:
    """This machine's facts.

    path: folder that is said to be on persistent memory; its mount and libpmem are asked about.
    memkind: whether to allocate from memkind's KMEM DAX kind and see where the page lies.
    ssd: folder that is said to be on a solid-state disk; its mount and disk are asked about.
    """
    nodes = _numbers(_NODES / "online")
    with_cpus = _numbers(_NODES / "has_cpu")
    facts: dict[str, object] = {
        "kernel": os.uname().release,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "nodes": nodes,
        "nodes_with_cpus": with_cpus,
        "nodes_without_cpus": sorted(set(nodes) - set(with_cpus)),
        "node_bytes": {str(node): _node_bytes(node) for node in nodes},
        "distances": {str(node): _distances(node, nodes) for node in nodes},
        "slow_nodes": _slow_nodes(with_cpus),
        "memory_side_cache": _memory_side_cache(),
        "regions": _or_null(_regions),
        "ram_bytes": _physical_bytes("System RAM"),
        "kmem_bytes": _physical_bytes("System RAM (kmem)"),
        "persistent_bytes": _physical_bytes("Persistent Memory"),
        "declared_persistent_bytes": _physical_bytes("Persistent Memory (legacy)"),  # by memmap=
    }
    if path is not None:
        facts["mount"] = _mount(path)
        facts["libpmem"] = {"is_pmem": _or_null(lambda: _is_pmem(path))}
    if memkind:
        facts["memkind"] = {"page_nodes": _or_null(_memkind_nodes)}
    if ssd is not None:
        facts["ssd"] = _disk(ssd)
    return facts


def _or_null(read: Callable[[], object]) -> object:
    """What can't be read is no fact. The proof, which expects one, then says so."""
    try:
        return read()
    except (OSError, ValueError, AttributeError, subprocess.CalledProcessError):
        return None


def _text(path: Path) -> str:
    return path.read_text().strip()


def _numbers(path: Path) -> list[int]:
    """A sysfs list such as "0-1,3". Without NUMA support in the kernel there is one node."""
    if not path.exists():
        return [0]
    ranges = (part.split("-") for part in _text(path).split(",") if part)
    return [n for low, *high in ranges for n in range(int(low), int(high[0] if high else low) + 1)]


def _node_bytes(node: int) -> int | None:
    path = _NODES / f"node{node}" / "meminfo"
    for line in _text(path).splitlines() if path.exists() else ():
        if "MemTotal:" in line:
            return int(line.split()[-2]) << 10
    return None


def _distances(node: int, nodes: list[int]) -> dict[str, int]:
    path = _NODES / f"node{node}" / "distance"
    values = _text(path).split() if path.exists() else ["10"]
    return {str(other): int(value) for other, value in zip(nodes, values, strict=True)}


def _slow_nodes(with_cpus: list[int]) -> list[int]:
    """Nodes in a lower memory tier than every node with CPUs."""
    tiers = {
        int(folder.name.removeprefix("memory_tier")): _numbers(folder / "nodelist")
        for folder in _TIERS.glob("memory_tier[0-9]*")
    }
    fast = [rank for rank, nodes in tiers.items() if set(nodes) & set(with_cpus)]
    return sorted(n for rank, nodes in tiers.items() if fast and rank > max(fast) for n in nodes)


def _memory_side_cache() -> dict[str, object] | None:
    """The memory-side cache of the first node that has one."""
    for folder in sorted(_NODES.glob("node*/memory_side_cache/index1")):
        return {
            "node": int(folder.parents[1].name.removeprefix("node")),
            "bytes": int(_text(folder / "size")),
            "line_bytes": int(_text(folder / "line_size")),
            "indexing": _INDEXING.get(int(_text(folder / "indexing")), "other"),
            "write_policy": _WRITE_POLICY.get(int(_text(folder / "write_policy")), "other"),
        }
    return None


def _regions() -> list[dict[str, object]]:
    """What `ndctl list -NR` says, in the same order; empty where there is no NVDIMM."""
    if not Path("/sys/bus/nd").exists():
        return []
    listing = subprocess.run(["ndctl", "list", "-NR"], capture_output=True, check=True).stdout
    document = json.loads(listing or b"[]")
    if isinstance(document, dict):  # with -R ndctl wraps the list
        document = document.get("regions", [])
    return [
        {
            "name": region["dev"],
            "bytes": region["size"],
            "persistence_domain": region.get("persistence_domain", "unknown"),
            "modes": [namespace.get("mode") for namespace in region.get("namespaces", [])],
        }
        for region in document
    ]


def _physical_bytes(name: str) -> int:
    """Size of the physical address ranges of this name. 0 without the privilege to see them."""
    total = 0
    for line in Path("/proc/iomem").read_text().splitlines():
        bounds, _, found = line.strip().partition(" : ")
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if found == name and high:
            total += high - low + 1
    return total


def _mount(path: str) -> dict[str, object]:
    """The mount that `path` is on, and whether a file there can be mapped with MAP_SYNC."""
    device, point, filesystem, options, *_ = _mounted_over(path)
    space = os.statvfs(path)
    return {
        "device": device,
        "point": point,
        "filesystem": filesystem,
        "dax": bool({"dax", "dax=always"} & set(options.split(","))),
        "map_sync": _map_sync(path),
        "device_number": device_number(Path(path).stat().st_dev),
        "free_bytes": space.f_bavail * space.f_frsize,
    }


def _mounted_over(path: str) -> list[str]:
    """The line of /proc/self/mounts for the mount that `path` is on."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    # The last of the longest: later mounts hide earlier ones.
    over = [m for m in mounts if os.path.commonpath([path, m[1]]) == m[1]]
    return max(enumerate(over), key=lambda item: (len(item[1][1]), item[0]))[1]


def _disk(path: str) -> dict[str, object]:
    """The disk that `path` is on, as lsblk and sysfs describe it."""
    mount = _mounted_over(path)
    facts: dict[str, object] = {
        "device": mount[0],
        "filesystem": mount[2],
        "bytes": os.statvfs(path).f_blocks * os.statvfs(path).f_frsize,
        "transport": None,
        "rotates": None,
        "device_number": device_number(Path(path).stat().st_dev),
    }
    traffic = _or_null(lambda: _traffic(path))
    if isinstance(traffic, dict):
        facts.update(traffic)
    listing = _or_null(lambda: _lsblk(mount[0]))
    if isinstance(listing, dict):
        facts["transport"] = listing.get("tran")
        facts["rotates"] = listing.get("rota")
    return facts


def _traffic(path: str) -> dict[str, int]:
    """What was read from and written to the device of `path` since the machine started."""
    number = device_number(Path(path).stat().st_dev)
    # Documentation/block/stat.rst: the third and the seventh are sectors of 512 bytes.
    fields = _text(Path("/sys/dev/block") / number / "stat").split()
    return {"read_bytes": int(fields[2]) * 512, "written_bytes": int(fields[6]) * 512}


def _lsblk(device: str) -> dict[str, object]:
    argv = ["lsblk", "--json", "--nodeps", "--output", "NAME,TRAN,ROTA", device]
    listing = subprocess.run(argv, capture_output=True, check=True).stdout
    found: dict[str, object] = json.loads(listing)["blockdevices"][0]
    return found


def _map_sync(path: str) -> bool:
    """Only a file on real DAX can be mapped so; anything else is EOPNOTSUPP."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.truncate(mmap.PAGESIZE)
        try:
            mapping = mmap.mmap(
                file.fileno(), mmap.PAGESIZE, flags=_MAP_SHARED_VALIDATE | _MAP_SYNC
            )
        except OSError:
            return False
        mapping[0] = 1
        mapping.close()
        return True


def _is_pmem(path: str) -> int:
    """libpmem's own answer for a file on `path`: 1 where stores need no msync."""
    library = ctypes.CDLL("libpmem.so.1", use_errno=True)
    library.pmem_map_file.restype = ctypes.c_void_p
    library.pmem_map_file.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint),
        *(ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int)),
    ]
    library.pmem_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    mapped, is_pmem = ctypes.c_size_t(), ctypes.c_int()
    file = Path(path) / ".pmemlab-probe"
    try:
        address = library.pmem_map_file(
            os.fsencode(file), mmap.PAGESIZE, _PMEM_FILE_CREATE, 0o600, mapped, is_pmem
        )
        if not address:
            raise OSError(ctypes.get_errno(), f"pmem_map_file: {file}")
        library.pmem_unmap(address, mapped)
    finally:
        file.unlink(missing_ok=True)
    return is_pmem.value


def _memkind_nodes() -> list[int]:
    """The nodes on which memory of memkind's KMEM DAX kind lies."""
    library = ctypes.CDLL("libmemkind.so.0")
    library.memkind_malloc.restype = ctypes.c_void_p
    library.memkind_malloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.memkind_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    kind = ctypes.c_void_p.in_dll(library, "MEMKIND_DAX_KMEM")
    address = library.memkind_malloc(kind, _TOUCHED_BYTES)
    if not address:
        raise OSError(
            "memkind_malloc(MEMKIND_DAX_KMEM): no memory; MEMKIND_DAX_KMEM_NODES is "
            + os.environ.get("MEMKIND_DAX_KMEM_NODES", "not set")
        )
    ctypes.memset(address, 1, _TOUCHED_BYTES)
    nodes = page_nodes(address, _TOUCHED_BYTES)
    library.memkind_free(kind, address)
    return list(nodes)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Print this machine's facts as JSON.")
    parser.add_argument("--path", help="folder that is said to be on persistent memory")
    parser.add_argument("--memkind", action="store_true", help="allocate by memkind's KMEM DAX")
    parser.add_argument("--ssd", help="folder that is said to be on a solid-state disk")
    arguments = parser.parse_args()
    print(json.dumps(read_facts(arguments.path, arguments.memkind, arguments.ssd)))


if __name__ == "__main__":
    _main()
