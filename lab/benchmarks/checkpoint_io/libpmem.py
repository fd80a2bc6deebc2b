"""The part of libpmem that the mapped format needs, through ctypes."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.checkpoint_io.errors import MediumError
from pmemlab.errors import MissingRequirementError

__all__ = ["PersistentMapping", "can_map_sync", "mapped_file"]

# libpmem.h
_NO_DRAIN, _NON_TEMPORAL = 1 << 0, 1 << 1  # PMEM_F_MEM_*
# asm-generic/mman-common.h
_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libpmem.so.1", use_errno=True)
    except OSError as error:
        raise MissingRequirementError(
            f"libpmem can't be loaded ({error})", "apt-get install libpmem1"
        ) from error
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.pmem_map_file.restype = pointer
    library.pmem_map_file.argtypes = [
        *(ctypes.c_char_p, size, ctypes.c_int, ctypes.c_uint),
        *(ctypes.POINTER(size), ctypes.POINTER(ctypes.c_int)),
    ]
    library.pmem_memcpy.restype = pointer
    library.pmem_memcpy.argtypes = [pointer, pointer, size, ctypes.c_uint]
    library.pmem_drain.argtypes = []
    library.pmem_drain.restype = None
    library.pmem_persist.argtypes = [pointer, size]
    library.pmem_persist.restype = None
    library.pmem_msync.argtypes = [pointer, size]
    library.pmem_unmap.argtypes = [pointer, size]
    return library


class PersistentMapping:
    """A whole file, mapped shared. Offsets are from its start.

    is_pmem: libpmem's answer to whether a fence makes stores durable. If False, as for a file in
    the page cache, msync(2) makes them durable.
    """

    def __init__(self, path: Path, address: int, length: int, is_pmem: bool) -> None:
        self.is_pmem = is_pmem
        self._path = path
        self._address = address
        self._length = length

    @property
    def sync_call(self) -> str:
        """The call that makes copies durable."""
        return "pmem_drain" if self.is_pmem else "pmem_msync"

    def copy(self, offset: int, source: int, length: int) -> None:
        """Copy from the address `source` by non-temporal stores, which `drain` makes durable."""
        self._check_range(offset, length)
        _library().pmem_memcpy(self._address + offset, source, length, _NO_DRAIN | _NON_TEMPORAL)

    def copy_bytes(self, offset: int, data: bytes) -> None:
        source = ctypes.c_char_p(data)
        self.copy(offset, ctypes.cast(source, ctypes.c_void_p).value or 0, len(data))

    def drain(self, offset: int, length: int) -> None:
        """Wait until all copies are durable. REQUIRES: they lie within `length` bytes from
        `offset`.
        """
        self._check_range(offset, length)
        _library().pmem_drain()
        if not self.is_pmem:
            self._msync(offset, length)

    def store_word(self, offset: int, value: int) -> None:
        """Store 8 bytes atomically (no failure can tear them), and wait until they are durable."""
        if offset % 8:
            raise ValueError(f"offset {offset} is no multiple of 8")
        self._check_range(offset, 8)
        ctypes.c_uint64.from_address(self._address + offset).value = value
        if self.is_pmem:
            _library().pmem_persist(self._address + offset, 8)
        else:
            self._msync(offset, 8)

    def _msync(self, offset: int, length: int) -> None:
        if _library().pmem_msync(self._address + offset, length):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(self._path))

    def _check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self._length:
            raise ValueError(
                f"{self._path}: {length} bytes at {offset} aren't within its {self._length}"
            )


@contextmanager
def mapped_file(path: Path) -> Iterator[PersistentMapping]:
    """Map a whole existing file. Raises OSError, MissingRequirementError, and MediumError if
    libpmem treats the file as persistent memory but the kernel doesn't.
    """
    library = _library()
    length, is_pmem = ctypes.c_size_t(), ctypes.c_int()
    address = library.pmem_map_file(os.fsencode(path), 0, 0, 0, length, is_pmem)
    if not address:
        error = ctypes.get_errno()
        raise OSError(error, f"pmem_map_file: {os.strerror(error)}", str(path))
    try:
        if is_pmem.value and not can_map_sync(path):
            raise MediumError(
                f"{path}: libpmem takes it for persistent memory, but the kernel doesn't map it as "
                "such; unset PMEM_IS_PMEM_FORCE"
            )
        yield PersistentMapping(path, address, length.value, bool(is_pmem.value))
    finally:
        library.pmem_unmap(address, length)


def can_map_sync(path: Path) -> bool:
    """Returns whether the kernel maps this file so that stores reach persistent memory. REQUIRES:
    the file isn't empty. Raises OSError if it can't be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        flags: Final = _MAP_SHARED_VALIDATE | _MAP_SYNC
        mmap.mmap(descriptor, mmap.PAGESIZE, flags=flags, prot=mmap.PROT_READ).close()
    except OSError:  # EOPNOTSUPP
        return False
    finally:
        os.close(descriptor)
    return True
