"""Finds where memory physically lies: evidence that a table is in the requested memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessMemory", "device_number", "unmap_pages_of"]

_SYS_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}
_BATCH_PAGES = 65_536
# Documentation/admin-guide/mm/pagemap.rst: the highest of a page's 64 bits says whether the page is
# present.
_ENTRY_BYTES = 8
_IS_PRESENT = bytes(value >> 7 for value in range(256))


class ProcessMemory:
    """A process's memory, with the mappings it had when this object was made.

    pid: the process; 0: this process.
    """

    def __init__(self, pid: int = 0) -> None:
        self._pid = pid
        self._mappings = list(_mappings(pid))  # in the order of their addresses
        self._lows = [mapping.low for mapping in self._mappings]

    def page_nodes(self, address: int, length: int) -> dict[int, int]:
        """Returns NUMA node -> number of pages of [address, address + length) that lie on it.

        Does not count pages that were never touched, nor pages whose node the kernel does not tell:
        pages of a file on a DAX mount have no node of their own (ask `backing_file`).

        Raises ValueError for an empty range, OSError if the kernel refuses.
        """
        return self.nodes_of_ranges(self.present_ranges(address, length))

    def nodes_of_ranges(self, ranges: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Returns the same as `page_nodes` for ranges of whole pages, each as (start, end)."""
        counts: Counter[int] = Counter()
        for start, end in ranges:
            for first in range(start, end, _BATCH_PAGES * mmap.PAGESIZE):
                last = min(first + _BATCH_PAGES * mmap.PAGESIZE, end)
                counts.update(self._nodes_of_pages(range(first, last, mmap.PAGESIZE)))
        return {node: count for node, count in sorted(counts.items()) if node >= 0}

    def _nodes_of_pages(self, pages: Sequence[int]) -> list[int]:
        """Returns the node of each page address, or a negative errno if the kernel tells none.

        Calls move_pages(2) without a target, which moves nothing. Raises OSError.
        """
        number = _SYS_MOVE_PAGES.get(os.uname().machine)
        if number is None:
            raise OSError(f"move_pages(2) is not known for {os.uname().machine}")
        libc = ctypes.CDLL(None, use_errno=True)
        count = len(pages)
        addresses = (ctypes.c_void_p * count)(*pages)
        status = (ctypes.c_int * count)()
        failed = libc.syscall(
            ctypes.c_long(number),
            ctypes.c_long(self._pid),
            ctypes.c_ulong(count),
            addresses,
            None,
            status,
            0,
        )
        if failed:
            error = ctypes.get_errno()
            raise OSError(error, f"move_pages: {os.strerror(error)}")
        return list(status)

    def present_ranges(self, address: int, length: int) -> Iterator[tuple[int, int]]:
        """Yields the present parts of [address, address + length), in whole pages.

        A table reserves gigabytes and touches megabytes, and an emulated machine counts slowly, so
        only readable addresses are looked up.

        Raises ValueError for an empty range.
        """
        if address <= 0 or length <= 0:
            raise ValueError(f"address {address:#x}, length {length}: must both be above 0")
        with Path(f"/proc/{self._pid or 'self'}/pagemap").open("rb", buffering=0) as pagemap:
            for low, high in self._readable(address, address + length):
                page, end = low // mmap.PAGESIZE, -(-high // mmap.PAGESIZE)
                while page < end:
                    pagemap.seek(page * _ENTRY_BYTES)
                    entries = pagemap.read(min(_BATCH_PAGES, end - page) * _ENTRY_BYTES)
                    flags = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_PRESENT)
                    if not flags:
                        return
                    there = flags.find(1)
                    while there >= 0:
                        gone = flags.find(0, there)
                        gone = len(flags) if gone < 0 else gone
                        yield (page + there) * mmap.PAGESIZE, (page + gone) * mmap.PAGESIZE
                        there = flags.find(1, gone)
                    page += len(flags)

    def _readable(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yields the readable parts of [low, high). Adjacent mappings come as one part, since a row
        may lie in both."""
        start = end = low
        for mapping in self._mappings[self._mapping_index(low) : self._mapping_index(high - 1) + 1]:
            if not mapping.is_readable or mapping.high <= low:
                continue
            if mapping.low > end:
                if end > start:
                    yield start, end
                start = mapping.low
            end = min(mapping.high, high)
        if end > start:
            yield start, end

    def backing_file(self, address: int) -> str | None:
        """Returns the path of the file mapped at `address`, or None if the memory is anonymous.

        Raises ValueError if nothing is mapped at `address`.
        """
        mapping = self._mappings[self._mapping_index(address)]
        if mapping.low <= address < mapping.high:
            return mapping.path
        raise ValueError(f"address {address:#x}: nothing is mapped there")

    def _mapping_index(self, address: int) -> int:
        """Returns the index of the last mapping that starts at or before the address, else 0."""
        return max(0, bisect_right(self._lows, address) - 1)


def unmap_pages_of(folder: Path) -> None:
    """Removes the pages of files under a folder from this process's page tables.

    The mappings stay: the next access gets the pages back from the page cache or the medium. Raises
    OSError if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    inside = f"{folder.resolve()}/"
    for mapping in _mappings():
        # A private mapping may hold changes that are nowhere else.
        if not mapping.is_shared or not (mapping.path or "").startswith(inside):
            continue
        start, size = ctypes.c_void_p(mapping.low), ctypes.c_size_t(mapping.high - mapping.low)
        if libc.madvise(start, size, mmap.MADV_DONTNEED):
            error = ctypes.get_errno()
            raise OSError(error, f"madvise: {os.strerror(error)}", mapping.path)


class _Mapping(NamedTuple):
    low: int
    high: int
    is_readable: bool
    is_shared: bool
    path: str | None


def _mappings(pid: int = 0) -> Iterator[_Mapping]:
    maps = Path(f"/proc/{pid or 'self'}/maps").read_text(encoding="utf-8", errors="replace")
    for line in maps.splitlines():
        bounds, permissions, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        file = path[0] if path and path[0].startswith("/") else None
        yield _Mapping(low, high, permissions[0] == "r", permissions.endswith("s"), file)


def device_number(st_dev: int) -> str:
    """Returns a device number of stat(2) as "major:minor", as sysfs writes it."""
    return f"{os.major(st_dev)}:{os.minor(st_dev)}"
