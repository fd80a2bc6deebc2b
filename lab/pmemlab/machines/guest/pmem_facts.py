"""Facts of persistent memory, from the kernel and from the libraries that programs use."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pmemlab.machines.guest.fact_reading import read_kernel_text, run_json_program, try_read
from pmemlab.machines.guest.memory_facts import cpus_of
from pmemlab.placement import ProcessMemory

__all__ = ["is_pmem", "map_sync", "memkind_nodes", "page_regions", "read_nvdimm_buses"]

_ND = Path("/sys/bus/nd")
_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000  # asm-generic/mman-common.h
_PMEM_FILE_CREATE = 1  # libpmem.h
_KPAGEFLAGS = Path("/proc/kpageflags")
_ZERO_PAGE = 1 << 24  # linux: uapi/linux/kernel-page-flags.h
_TOUCHED_BYTES = 1 << 20
_SPREAD_BYTES = 8 << 20  # more than one chunk of interleaved devices


def read_nvdimm_buses() -> dict[str, object]:
    """Returns the DIMMs and the regions of persistent memory that ndctl lists, by name.

    Both lists are empty if the kernel has no such bus.
    """
    if not _ND.exists():
        return {"dimms": [], "regions": []}
    buses = run_json_program(["ndctl", "list", "--buses", "--dimms", "--regions", "--namespaces"])
    dimms = [
        {"name": dimm["dev"], "provider": bus["provider"]}
        for bus in buses
        for dimm in bus.get("dimms", [])
    ]
    regions = [_region(region, bus) for bus in buses for region in bus.get("regions", [])]
    return {"dimms": sorted(dimms, key=_by_name), "regions": sorted(regions, key=_by_name)}


def _by_name(fact: dict[str, Any]) -> tuple[int, str]:
    """Returns a sort key of a fact by its name, in natural order: region2 before region10."""
    name: str = fact["name"]
    return len(name), name


def _region(region: dict[str, Any], bus: dict[str, Any]) -> dict[str, object]:
    folder = _ND / "devices" / region["dev"]
    return {
        "name": region["dev"],
        "provider": bus["provider"],
        "bytes": region["size"],
        "node": try_read(lambda: int(read_kernel_text(folder / "numa_node"))),
        "dimms": try_read(lambda: int(read_kernel_text(folder / "mappings"))),
        "persistence_domain": try_read(lambda: _persistence_domain(folder)),
        "modes": [namespace.get("mode") for namespace in region.get("namespaces", [])],
    }


def _persistence_domain(folder: Path) -> str:
    """Returns the domain. The kernel has this file only if the bus has declared the domain."""
    path = folder / "persistence_domain"
    return read_kernel_text(path) if path.exists() else "unknown"


def map_sync(path: str) -> bool:
    """Returns whether a file in this folder can be mapped with MAP_SYNC, which needs real DAX."""
    with _allocated_file(path, mmap.PAGESIZE) as (file, is_new):
        try:
            mapping = mmap.mmap(
                file.fileno(), mmap.PAGESIZE, flags=_MAP_SHARED_VALIDATE | _MAP_SYNC
            )
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False
        _touch(mapping, is_new)
        mapping.close()
        return True


def page_regions(path: str) -> list[str]:
    """Returns the regions of persistent memory that contain the pages of a mapped file in this
    folder.

    "none" stands for pages elsewhere. Raises PermissionError if only root may read this.
    """
    regions = {
        folder.name: (
            int(read_kernel_text(folder / "resource"), 0),
            int(read_kernel_text(folder / "size")),
        )
        for folder in (_ND / "devices").glob("region*")
    }
    with _allocated_file(path, _SPREAD_BYTES) as (file, is_new):
        size = min(_SPREAD_BYTES, os.fstat(file.fileno()).st_size)
        with mmap.mmap(file.fileno(), size - size % mmap.PAGESIZE) as mapping:
            _touch(mapping, is_new)
            addresses = _physical_addresses(mapping)
    if not is_new:
        addresses = _without_zero_page(addresses, path)
    found = {
        next((name for name, (at, size) in regions.items() if at <= a < at + size), "none")
        for a in addresses
    }
    return sorted(found)


@contextmanager
def _allocated_file(path: str, size: int) -> Iterator[tuple[IO[bytes], bool]]:
    """Yields an open file in this folder with all its blocks allocated, and whether the file is
    new.

    In a full folder the file is one of the user's, which must not be written.
    """
    new_file = _new_file(path, size)
    with new_file or _file_in_full_folder(path).open("r+b") as file:
        yield file, new_file is not None


def _new_file(path: str, size: int) -> IO[bytes] | None:
    """Returns a file without a name. Returns None if there is no room for its pages: a store to
    them would end the process."""
    file = None
    try:
        file = tempfile.TemporaryFile(dir=path)  # noqa: SIM115  # the caller closes it
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if file is not None:
            file.close()
        if error.errno != errno.ENOSPC:
            raise
        return None
    return file


def _file_in_full_folder(path: str) -> Path:
    """Returns the largest file without holes on the file system, of a page at least."""
    sizes = {}
    device = Path(path).stat().st_dev
    for folder, _, names in os.walk(path):
        for file in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):  # removed meanwhile
                status = file.lstat()
                is_whole = status.st_blocks * 512 >= status.st_size >= mmap.PAGESIZE
                if stat.S_ISREG(status.st_mode) and status.st_dev == device and is_whole:
                    sizes[file] = status.st_size
    if not sizes:
        raise OSError(errno.ENOSPC, "is full, and has no file that could be mapped", path)
    return max(sizes, key=lambda file: sizes[file])


def _touch(mapping: mmap.mmap, is_new: bool) -> None:
    """Maps every page of the file: by a store if the file is ours, else by a load."""
    for offset in range(0, len(mapping), mmap.PAGESIZE):
        if is_new:
            mapping[offset] = 1
        else:
            _ = mapping[offset]


def _physical_addresses(mapping: mmap.mmap) -> list[int]:
    """Returns the address of every page (linux: admin-guide/mm/pagemap.rst).

    REQUIRES: every page has been touched.
    """
    pages = len(mapping) // mmap.PAGESIZE
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(start // mmap.PAGESIZE * 8)
        entries = struct.unpack(f"={pages}Q", pagemap.read(pages * 8))
    frames = [entry & ((1 << 55) - 1) for entry in entries]
    if not all(frames):
        raise PermissionError("/proc/self/pagemap shows physical addresses to root alone")
    return [frame * mmap.PAGESIZE for frame in frames]


def _without_zero_page(addresses: list[int], path: str) -> list[int]:
    """Returns the addresses of pages that were written before.

    A page that is allocated but was never written, as in a new pool of libpmem's, reads as the
    kernel's page of zeros, which is in RAM. Raises OSError if no page was written.
    """
    with _KPAGEFLAGS.open("rb", buffering=0) as file:
        flags = {a: os.pread(file.fileno(), 8, a // mmap.PAGESIZE * 8) for a in {*addresses}}
    written = [a for a in addresses if not int.from_bytes(flags[a], sys.byteorder) & _ZERO_PAGE]
    if not written:
        raise OSError(errno.ENOSPC, "is full, and its largest file was never written", path)
    return written


def is_pmem(path: str) -> int:
    """Returns libpmem's answer for a file in this folder: 1 if stores need no msync."""
    library = ctypes.CDLL("libpmem.so.1", use_errno=True)
    library.pmem_map_file.restype = ctypes.c_void_p
    library.pmem_map_file.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint),
        *(ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int)),
    ]
    library.pmem_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    mapped, answer = ctypes.c_size_t(), ctypes.c_int()
    file = Path(path) / ".pmemlab-probe"
    arguments = (mmap.PAGESIZE, _PMEM_FILE_CREATE, 0o600, mapped, answer)
    try:
        address = library.pmem_map_file(os.fsencode(file), *arguments)
        if not address and ctypes.get_errno() == errno.ENOSPC:
            file.unlink(missing_ok=True)
            full = _file_in_full_folder(path)
            address = library.pmem_map_file(os.fsencode(full), 0, 0, 0, mapped, answer)
        if not address:
            raise OSError(ctypes.get_errno(), f"pmem_map_file: {file}")
        library.pmem_unmap(address, mapped)
    finally:
        file.unlink(missing_ok=True)
    return answer.value


def memkind_nodes(node: int) -> list[int]:
    """Returns the nodes on which memkind's KMEM DAX kind allocates for a CPU of `node`.

    memkind chooses the node nearest to the CPU, once per process, so a child process asks it.
    Raises OSError with the child's message.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "it died"
        try:
            os.sched_setaffinity(0, cpus_of(node))
            answer = json.dumps(_memkind_nodes())
        except (OSError, ValueError, AttributeError) as error:
            answer = str(error)
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    if not answer.startswith("["):
        raise OSError(answer or "the process that asked memkind died")
    nodes: list[int] = json.loads(answer)
    return nodes


def _memkind_nodes() -> list[int]:
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
    nodes = ProcessMemory().page_nodes(address, _TOUCHED_BYTES)
    library.memkind_free(kind, address)
    return list(nodes)
