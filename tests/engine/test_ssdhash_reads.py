"""Rows of SSDHASH are read back by io_uring and by pread, past the page cache and through it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from programs import run_program

SYS_IO_URING_SETUP = 425

# Makes the kernel refuse io_uring, as kernels before 5.1 and many containers do.
WITHOUT_IO_URING = f"""
import ctypes, struct
load_number, jump_unless_equal, ret = 0x20, 0x15, 0x06
code = [
    (load_number, 0, 0, 0),
    (jump_unless_equal, 0, 1, {SYS_IO_URING_SETUP}),
    (ret, 0, 0, 0x00050000 | 38),  # ENOSYS
    (ret, 0, 0, 0x7FFF0000),  # go on
]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
"""

MANY_ROWS = """
import os, sys
import numpy as np
import embstore as es

with es.get_embedding_variable(
    "var", 3, initializer=es.initializers.Zeros(), optimizer=es.optimizers.SGD(1.0),
    ev_option=es.EmbeddingVariableOption(storage_option=es.StorageOption(
        es.StorageType.SSDHASH, storage_path=sys.argv[1], storage_size=[16 * 1000],
        ssdhash_option=es.SSDHashOption(direct_io=DIRECT_IO)))
) as var:
    keys = np.arange(262_145)
    wanted = np.repeat(keys[:, None] + 3.0, 3, 1).astype(np.float32)
    for some in np.array_split(keys, 40):
        var.apply_gradients(some, -wanted[some])
    var.drain()
    assert (var.lookup(keys, train=True) == wanted).all()
    assert (var.lookup(keys) == wanted).all()
    var.drain()
    assert (var.export()["values"] == wanted).all()
    assert [tier["rows"] for tier in var.stats()["tiers"]] == [1000, 261_145]
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    print("io_uring" if any("io_uring" in file for file in files) else "pread")
"""


@pytest.mark.parametrize("scheme", ["io_uring", "pread"])
def test_ssdhash_reads_every_row_back(tmp_path: Path, scheme: str) -> None:
    if scheme == "io_uring" and not kernel_has_io_uring():
        pytest.skip("the kernel has no io_uring, or keeps this process from it")
    without = WITHOUT_IO_URING if scheme == "pread" else ""
    run = run_program(f"DIRECT_IO = True{without}{MANY_ROWS}", tmp_path)
    assert (run.returncode, run.stdout.strip()) == (0, scheme), run.stderr


def test_ssdhash_reads_every_row_back_from_the_page_cache(tmp_path: Path) -> None:
    run = run_program(f"DIRECT_IO = False{MANY_ROWS}", tmp_path)
    assert run.returncode == 0, run.stderr


def kernel_has_io_uring() -> bool:
    parameters = ctypes.create_string_buffer(120)  # struct io_uring_params
    ring = ctypes.CDLL(None).syscall(SYS_IO_URING_SETUP, 1, parameters)
    if ring >= 0:
        os.close(ring)
    return bool(ring >= 0)
