"""What the kernel and the libraries that programs use say of persistent memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

from pmemlab.guest.reading import attempt, document_of, text_of
from pmemlab.placement import page_nodes

__all__ = ["is_pmem", "map_sync", "memkind_nodes", "read_nvdimm_buses"]

_ND = Path("/sys/bus/nd")
_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000  # asm-generic/mman-common.h
_PMEM_FILE_CREATE = 1  # libpmem.h
_TOUCHED_BYTES = 1 << 20


def read_nvdimm_buses() -> dict[str, object]:
    """The DIMMs and the regions of persistent memory that ndctl lists, in its order.

    Both are empty where the kernel knows no such bus.
    """
    if not _ND.exists():
        return {"dimms": [], "regions": []}
    buses = document_of(["ndctl", "list", "--buses", "--dimms", "--regions", "--namespaces"])
    return {
        "dimms": [
            {"name": dimm["dev"], "provider": bus["provider"]}
            for bus in buses
            for dimm in bus.get("dimms", [])
        ],
        "regions": [_region(region, bus) for bus in buses for region in bus.get("regions", [])],
    }


def _region(region: dict[str, Any], bus: dict[str, Any]) -> dict[str, object]:
    folder = _ND / "devices" / region["dev"]
    return {
        "name": region["dev"],
        "provider": bus["provider"],
        "bytes": region["size"],
        "node": attempt(lambda: int(text_of(folder / "numa_node"))),
        "dimms": attempt(lambda: int(text_of(folder / "mappings"))),
        "persistence_domain": attempt(lambda: _persistence_domain(folder)),
        "modes": [namespace.get("mode") for namespace in region.get("namespaces", [])],
    }


def _persistence_domain(folder: Path) -> str:
    """The kernel shows the file only where the bus has said what the domain is."""
    path = folder / "persistence_domain"
    return text_of(path) if path.exists() else "unknown"


def map_sync(path: str) -> bool:
    """Whether a file in this folder can be mapped with MAP_SYNC: only one on real DAX can."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.truncate(mmap.PAGESIZE)
        try:
            mapping = mmap.mmap(
                file.fileno(), mmap.PAGESIZE, flags=_MAP_SHARED_VALIDATE | _MAP_SYNC
            )
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False
        mapping[0] = 1
        mapping.close()
        return True


def is_pmem(path: str) -> int:
    """libpmem's own answer for a file in this folder: 1 where stores need no msync."""
    library = ctypes.CDLL("libpmem.so.1", use_errno=True)
    library.pmem_map_file.restype = ctypes.c_void_p
    library.pmem_map_file.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint),
        *(ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int)),
    ]
    library.pmem_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    mapped, answer = ctypes.c_size_t(), ctypes.c_int()
    file = Path(path) / ".pmemlab-probe"
    try:
        address = library.pmem_map_file(
            os.fsencode(file), mmap.PAGESIZE, _PMEM_FILE_CREATE, 0o600, mapped, answer
        )
        if not address:
            raise OSError(ctypes.get_errno(), f"pmem_map_file: {file}")
        library.pmem_unmap(address, mapped)
    finally:
        file.unlink(missing_ok=True)
    return answer.value


def memkind_nodes() -> list[int]:
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
