"""Tells whether files lie in the page cache, and evicts them from it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["Eviction", "FilePart", "evict", "resident_fraction"]

Eviction = Literal["posix_fadvise", "drop_caches"]
"""posix_fadvise: these files' pages alone, without privileges. drop_caches: everything that the
machine has cached, as root; for machines without other users.
"""

_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_ATTEMPTS: Final = 10
_BETWEEN_ATTEMPTS_S: Final = 0.1


@dataclass(frozen=True)
class FilePart:
    """A range of bytes of a file. offset: a multiple of the page size."""

    path: Path
    offset: int
    length: int

    @classmethod
    def whole(cls, path: Path) -> FilePart:
        return cls(path, 0, path.stat().st_size)


def evict(parts: Sequence[FilePart], eviction: Eviction) -> None:
    """Ask the kernel to drop the pages of the parts' files. It may not: see `resident_fraction`.

    A page stays while the kernel or a process holds it for a moment, for example just after a write
    or read; so this function asks again, for up to a second.

    Raises OSError, PermissionError for drop_caches without being root.
    """
    for _ in range(_ATTEMPTS):
        _evict_once(parts, eviction)
        if resident_fraction(parts) == 0:
            return
        time.sleep(_BETWEEN_ATTEMPTS_S)


def _evict_once(parts: Sequence[FilePart], eviction: Eviction) -> None:
    for path in {part.path for part in parts}:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # the kernel doesn't drop dirty pages
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    if eviction == "drop_caches":
        os.sync()
        _DROP_CACHES.write_text("3")


def resident_fraction(parts: Sequence[FilePart]) -> float:
    """Return the share of the parts' pages in the page cache, 0 to 1, by mincore(2).

    0 for files on a DAX mount, which are never cached. Raises OSError.
    """
    resident = pages = 0
    for part in parts:
        if part.length:
            found = _resident_pages(part)
            resident += sum(found)
            pages += len(found)
    return resident / pages if pages else 0.0


def _resident_pages(part: FilePart) -> list[bool]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    with (
        part.path.open("rb") as opened,
        mmap.mmap(
            opened.fileno(), part.length, access=mmap.ACCESS_COPY, offset=part.offset
        ) as mapping,
    ):
        flags = ctypes.create_string_buffer(-(-part.length // mmap.PAGESIZE))
        first = ctypes.c_char.from_buffer(mapping)
        try:
            failed = libc.mincore(ctypes.addressof(first), part.length, flags)
        finally:
            del first  # else the mapping can't be closed
        if failed:
            error = ctypes.get_errno()
            raise OSError(error, f"mincore: {os.strerror(error)}", str(part.path))
    return [bool(flag & 1) for flag in flags.raw]
