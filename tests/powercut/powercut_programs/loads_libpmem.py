"""Programs that load libpmem at run time, by Python's ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

BYTES = 4096
_CREATE = 1


def _map(medium: Path) -> tuple[ctypes.CDLL, int]:
    pmem = ctypes.CDLL("libpmem.so.1")
    pmem.pmem_map_file.restype = ctypes.c_void_p
    is_pmem = ctypes.c_int()
    address = pmem.pmem_map_file(
        os.fsencode(medium / "file"),
        ctypes.c_size_t(BYTES),
        _CREATE,
        0o600,
        None,
        ctypes.byref(is_pmem),
    )
    if not address or not is_pmem.value:
        sys.exit(1)
    return pmem, address


def make(medium: Path) -> None:
    (medium / "file").write_bytes(bytes(BYTES))


def store(medium: Path) -> None:
    _, address = _map(medium)
    ctypes.memset(address, 7, BYTES)


def store_and_persist(medium: Path) -> None:
    pmem, address = _map(medium)
    ctypes.memset(address, 7, BYTES)
    pmem.pmem_persist(ctypes.c_void_p(address), ctypes.c_size_t(BYTES))
    print("durable", flush=True)


def store_in_a_forked_child(medium: Path) -> None:
    """The child stores, and its parent persists; the child's end is no cut point."""
    pmem, address = _map(medium)
    child = os.fork()
    if child == 0:
        ctypes.memset(address, 7, BYTES)
        os._exit(0)
    os.waitpid(child, 0)
    pmem.pmem_persist(ctypes.c_void_p(address), ctypes.c_size_t(BYTES))
    print("durable", flush=True)


def persist_in_a_forked_child(medium: Path) -> None:
    pmem, address = _map(medium)
    child = os.fork()
    if child == 0:
        pmem.pmem_persist(ctypes.c_void_p(address), ctypes.c_size_t(BYTES))
        os._exit(0)
    os.waitpid(child, 0)
