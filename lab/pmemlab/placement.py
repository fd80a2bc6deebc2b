"""Where memory really lies: the evidence that a table is in the memory it was asked for.

The functions look at the process that calls them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

__all__ = ["backing_file", "device_number", "page_nodes", "unmap_pages_of"]

_SYS_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}
_BATCH_PAGES = 65_536


def page_nodes(address: int, length: int) -> dict[int, int]:
    """NUMA node -> number of pages of [address, address + length) that lie on it.

    Asked of the kernel by move_pages(2) without a target, which moves nothing. Pages that were
    never touched lie nowhere and are not counted, nor are those that the kernel does not tell
    about (pages of a file on a DAX mount have no node of their own: ask `backing_file`).

    Raises ValueError for an empty range, OSError where the kernel refuses.
    """
    if address <= 0 or length <= 0:
        raise ValueError(f"address {address:#x}, length {length}: must both be above 0")
    pages = _pages_in_memory(address // mmap.PAGESIZE, -(-(address + length) // mmap.PAGESIZE))
    counts: Counter[int] = Counter()
    while batch := list(islice(pages, _BATCH_PAGES)):
        counts.update(s for s in _query(batch) if s >= 0)
    return dict(sorted(counts.items()))


def _pages_in_memory(first: int, end: int) -> Iterator[int]:
    """Addresses of those of the pages numbered from `first` to `end` that are there.

    A table reserves gigabytes and touches megabytes, and an emulated machine counts slowly.
    """
    # Documentation/admin-guide/mm/pagemap.rst: of the 64 bits of a page, the highest says it.
    entry_bytes = 8
    is_there = bytes(value >> 7 for value in range(256))
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for start in range(first, end, _BATCH_PAGES):
            pagemap.seek(start * entry_bytes)
            entries = pagemap.read(min(_BATCH_PAGES, end - start) * entry_bytes)
            flags = entries[entry_bytes - 1 :: entry_bytes].translate(is_there)
            at = flags.find(1)
            while at >= 0:
                yield (start + at) * mmap.PAGESIZE
                at = flags.find(1, at + 1)


def _query(pages: Sequence[int]) -> list[int]:
    """Each page's node, or minus an errno (-ENOENT: not present)."""
    number = _SYS_MOVE_PAGES.get(os.uname().machine)
    if number is None:
        raise OSError(f"move_pages(2) is not known for {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    count = len(pages)
    addresses = (ctypes.c_void_p * count)(*pages)
    status = (ctypes.c_int * count)()
    failed = libc.syscall(
        ctypes.c_long(number), ctypes.c_long(0), ctypes.c_ulong(count), addresses, None, status, 0
    )
    if failed:
        error = ctypes.get_errno()
        raise OSError(error, f"move_pages: {os.strerror(error)}")
    return list(status)


def backing_file(address: int) -> str | None:
    """Path of the file that is mapped at address, or None where the memory is anonymous.

    Raises ValueError where nothing is mapped at address.
    """
    for mapping in _mappings():
        if mapping.low <= address < mapping.high:
            return mapping.path
    raise ValueError(f"address {address:#x}: nothing is mapped there")


def unmap_pages_of(folder: Path) -> None:
    """Take the pages of files under a folder out of this process's page tables.

    The mappings stay: whoever reads them gets the pages back from the page cache, or the medium.
    Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for mapping in _mappings():
        # A private mapping may hold changes that are nowhere else.
        if not mapping.is_shared or not (mapping.path or "").startswith(f"{folder.resolve()}/"):
            continue
        start, size = ctypes.c_void_p(mapping.low), ctypes.c_size_t(mapping.high - mapping.low)
        if libc.madvise(start, size, mmap.MADV_DONTNEED):
            error = ctypes.get_errno()
            raise OSError(error, f"madvise: {os.strerror(error)}", mapping.path)


class _Mapping(NamedTuple):
    low: int
    high: int
    is_shared: bool
    path: str | None


def _mappings() -> Iterator[_Mapping]:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        bounds, permissions, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        file = path[0] if path and path[0].startswith("/") else None
        yield _Mapping(low, high, permissions.endswith("s"), file)


def device_number(st_dev: int) -> str:
    """ "major:minor" of a device number as stat(2) gives it, as sysfs writes them."""
    return f"{os.major(st_dev)}:{os.minor(st_dev)}"
