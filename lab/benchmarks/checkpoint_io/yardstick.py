"""Measures a medium's rates without checkpoints, by fio if it is installed, else by its own loop.

Both write a file of random bytes in blocks, several at a time, past the page cache if the file
system allows it, sync it, and read it back. On a mapped medium the own loop copies into the mapping
and, with the page cache dropped, from it. A paced medium's rates come from its device file.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.checkpoint_io.libpmem import mapped_file
from benchmarks.checkpoint_io.medium import Medium
from benchmarks.checkpoint_io.pacing import PacedDevice
from benchmarks.checkpoint_io.page_cache import FilePart, evict
from pmemlab.workloads.run import FailedRunError

__all__ = ["Yardstick", "YardstickError", "measure_yardstick"]

BLOCK_BYTES: Final = 1 << 20
_AT_ONCE: Final = 8


class YardstickError(FailedRunError):
    """fio failed, or its output isn't understood."""


@dataclass(frozen=True)
class Yardstick:
    """A medium's rates. by: the tool and its settings. Rates are medians in bytes/s, syncs
    included.
    """

    medium: str
    by: str
    bytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float


def measure_yardstick(medium: Medium, size: int, repeats: int) -> Yardstick:
    """Measure with a temporary file of at least `size` bytes in the medium's folder.

    Raises YardstickError, OSError.
    """
    if medium.paced_as is not None:
        return _published(medium.name, medium.paced_as, size)
    size = max(-(-size // BLOCK_BYTES), _AT_ONCE) * BLOCK_BYTES
    with _allocated_file(medium.path, size) as file:
        tool, measure_once = _tool(medium, file, size)
        rates = [measure_once() for _ in range(repeats)]
    writes, reads = zip(*rates, strict=True)
    return Yardstick(medium.name, tool, size, statistics.median(writes), statistics.median(reads))


def _published(name: str, device: PacedDevice, size: int) -> Yardstick:
    method = "its file, in sequence" if device.has_page_cache else "its file, one thread streams"
    return Yardstick(
        name, method, size, device.file_write_mb_per_s * 1e6, device.read_mb_per_s * 1e6
    )


def _tool(medium: Medium, file: Path, size: int) -> tuple[str, Callable[[], tuple[float, float]]]:
    """Returns a description of the tool, and a function that returns one write rate and
    read rate.
    """
    if medium.kind == "mapped":
        return "own loop, libpmem copies into a mapping", lambda: _mapped(file, size)
    direct = _allows_direct_io(file)
    method = f"{'direct I/O' if direct else 'through the page cache'}, 1 MiB blocks"
    fio = shutil.which("fio")
    if fio is None:
        return f"own loop, {method}, 8 threads", lambda: _measure_by_loop(file, size, direct)
    depth = _AT_ONCE if direct else 1
    return f"fio, {method}, depth {depth}", lambda: _fio(fio, file, size, direct)


@contextmanager
def _allocated_file(folder: Path, size: int) -> Iterator[Path]:
    """Yields a file with allocated blocks, so that the disk is measured and not the allocator."""
    file = folder / f".pmemlab-yardstick-{os.getpid()}"
    try:
        with file.open("wb") as opened:
            for _ in range(size // BLOCK_BYTES):
                opened.write(os.urandom(BLOCK_BYTES))
            opened.flush()
            os.fsync(opened.fileno())
        yield file
    finally:
        file.unlink(missing_ok=True)


def _allows_direct_io(file: Path) -> bool:
    try:
        os.close(os.open(file, os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def _fio(fio: str, file: Path, size: int, direct: bool) -> tuple[float, float]:
    return _fio_job(fio, file, size, direct, "write"), _fio_job(fio, file, size, direct, "read")


def _fio_job(fio: str, file: Path, size: int, direct: bool, operation: str) -> float:
    arguments = {
        "name": "yardstick",
        "filename": str(file).replace(":", "\\:"),
        "rw": operation,
        "bs": BLOCK_BYTES,
        "size": size,
        "direct": int(direct),
        "ioengine": "libaio" if direct else "psync",
        "iodepth": _AT_ONCE if direct else 1,
        "end_fsync": int(operation == "write"),
        "output-format": "json",
    }
    argv = [fio, *(f"--{name}={value}" for name, value in arguments.items())]
    output = subprocess.run(argv, capture_output=True, text=True)
    if output.returncode:
        raise YardstickError(f"{' '.join(argv)} failed: {output.stderr.strip()}")
    return parse_fio(output.stdout, operation)


def parse_fio(text: str, operation: str) -> float:
    """Returns the bytes/s in fio's JSON output, which notes may precede. Raises YardstickError."""
    try:
        document: Any = json.loads(text[text.index("{") :])
        (job,) = document["jobs"]
        # Use the whole job's time, since the operation's own excludes the sync at its end.
        rate = job[operation]["io_bytes"] / (job["job_runtime"] / 1000)
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        raise YardstickError(f"fio's output isn't understood: {error!r}: {text[:200]}") from error
    return float(rate)


def _measure_by_loop(file: Path, size: int, direct: bool) -> tuple[float, float]:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    descriptor = os.open(file, flags)
    # Mappings are page-aligned, as direct I/O requires.
    buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(_AT_ONCE)]
    for buffer in buffers:
        buffer.write(os.urandom(BLOCK_BYTES))

    def through_all(call: Callable[[mmap.mmap, int], int]) -> None:
        def one_thread(number: int) -> None:
            for offset in range(number * BLOCK_BYTES, size, _AT_ONCE * BLOCK_BYTES):
                if call(buffers[number], offset) != BLOCK_BYTES:
                    raise YardstickError(f"{file}: a block was cut short")

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done in [pool.submit(one_thread, number) for number in range(_AT_ONCE)]:
                done.result()

    try:
        started = time.perf_counter()
        through_all(lambda buffer, offset: os.pwritev(descriptor, [buffer], offset))
        os.fsync(descriptor)
        written = time.perf_counter()
        through_all(lambda buffer, offset: os.preadv(descriptor, [buffer], offset))
        return size / (written - started), size / (time.perf_counter() - written)
    finally:
        os.close(descriptor)


def _mapped(file: Path, size: int) -> tuple[float, float]:
    block = os.urandom(BLOCK_BYTES)
    with mapped_file(file) as mapping:
        started = time.perf_counter()
        for offset in range(0, size, BLOCK_BYTES):
            mapping.copy_bytes(offset, block)
        mapping.drain(0, size)
        written = time.perf_counter() - started
    evict([FilePart.whole(file)], "posix_fadvise")
    target = ctypes.create_string_buffer(BLOCK_BYTES)
    address = ctypes.addressof(target)
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped,
    ):
        first = ctypes.c_char.from_buffer(mapped)
        start = ctypes.addressof(first)
        started = time.perf_counter()
        for offset in range(0, size, BLOCK_BYTES):
            ctypes.memmove(address, start + offset, BLOCK_BYTES)
        read = time.perf_counter() - started
        del first
    return size / written, size / read
