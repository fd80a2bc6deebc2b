"""The losses of a guest by a power cut, and the files and stores that it keeps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pmemlab.errors import MachineDiedError
from pmemlab.machines.protocol import Machine

pytestmark = pytest.mark.long

_LIMIT_S = 300.0
_READY = "ready for a power cut"

# One file is flushed to the disk; the kernel would write the other half a minute later.
_WRITE_FILES = f"""
cd "$1"; rm -f synced unsynced; printf kept > synced; sync synced; printf lost > unsynced
cat synced unsynced; echo; echo {_READY}; sleep 600
"""
# Two stores into persistent memory: one flushed by libpmem, one left in the CPU's caches.
_STORE = f"""
import ctypes, sys, time
libpmem = ctypes.CDLL("libpmem.so.1")
libpmem.pmem_map_file.restype = ctypes.c_void_p
libpmem.pmem_memcpy_persist.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
is_pmem = ctypes.c_int()
create = 1  # PMEM_FILE_CREATE
address = libpmem.pmem_map_file(
    sys.argv[1].encode(), ctypes.c_size_t(4096), create, 0o600, None, ctypes.byref(is_pmem)
)
assert address and is_pmem.value
libpmem.pmem_memcpy_persist(address, b"flushed.", 8)
ctypes.memmove(address + 64, b"in cache", 8)
print({_READY!r}, flush=True)
time.sleep(600)
"""


def _run_until_power_cut(machine: Machine, argv: Sequence[str]) -> None:
    def on_line(line: str) -> None:
        if line == _READY:
            machine.power_cut()

    with pytest.raises(MachineDiedError, match="has had its power cut"):
        machine.run(argv, timeout=_LIMIT_S, on_line=on_line)
    machine.power_on()


def _skip_a_process(machine: Machine) -> None:
    if machine.kind == "process":
        pytest.skip("a process has this computer's kernel, which lives on and loses nothing")


@pytest.mark.pmemlab("nvme")
def test_a_file_outlives_a_power_cut_if_it_was_synced(machine: Machine) -> None:
    _skip_a_process(machine)
    assert machine.topology.ssd is not None
    folder = machine.topology.ssd.path
    _run_until_power_cut(machine, ["sh", "-ec", _WRITE_FILES, "write", folder])
    found = machine.run(["sh", "-c", f"cat {folder}/synced; cat {folder}/unsynced"], timeout=60)
    assert found.stdout == "kept"


@pytest.mark.pmemlab("fsdax", "fsdax-eadr")
def test_a_store_into_persistent_memory_outlives_a_power_cut(machine: Machine) -> None:
    """Both stores outlive it: QEMU has no CPU caches; `powercut` emulates them."""
    _skip_a_process(machine)
    path = f"{machine.topology.pmem.path}/stored"
    _run_until_power_cut(machine, [machine.python, "-c", _STORE, path])
    found = machine.run(["head", "-c", "72", path], timeout=60)
    assert found.stdout == f"{'flushed.':\0<64}in cache"


@pytest.mark.pmemlab("fsdax-memmap")
def test_ram_that_is_declared_persistent_is_empty_after_a_power_cut(machine: Machine) -> None:
    _skip_a_process(machine)
    folder = machine.topology.pmem.path
    _run_until_power_cut(machine, ["sh", "-ec", _WRITE_FILES, "write", str(folder)])
    found = machine.run(["sh", "-c", f"ls {folder}"], timeout=60)
    assert found.stdout.split() == ["lost+found"]
