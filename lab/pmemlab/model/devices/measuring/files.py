"""Measures reads and appends on a disk, by size and requests in flight, by direct I/O."""

from __future__ import annotations

from functools import partial

from embstore.bench._yardsticks import FileYardstick
from embstore.errors import EmbStoreError
from pmemlab.errors import MeasuringError
from pmemlab.model.devices.measuring.figures import Advance, Figures, median_rate, rounds_text
from pmemlab.model.devices.measuring.target import FolderTarget

__all__ = ["BLOCK_BYTES", "file_steps", "measure_files", "min_file_bytes"]

BLOCK_BYTES = 4096
_SIZES = (4096, 8192, 16384, 65536, 131072, 1 << 20)
_IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64)
_CURVES = (("read", "random"), ("read", "sequential"), ("write", "sequential"))


def file_steps() -> int:
    """Returns how often `measure_files` calls `advance`."""
    return 1 + len(_CURVES) * len(_SIZES) * len(_IN_FLIGHT)


def min_file_bytes() -> int:
    """Returns the least size of a file in which all requests in flight have bytes of their own."""
    return max(_SIZES) * max(_IN_FLIGHT)


def measure_files(
    target: FolderTarget, size_bytes: int, seconds: float, page_cache: bool, advance: Advance
) -> Figures:
    """Measures a folder's disk. page_cache: go through the page cache, as LevelDB does. Raises
    MeasuringError.
    """
    advance(f"writing a file of {size_bytes >> 20} MiB")
    try:
        disk = FileYardstick(size_bytes, str(target.folder), direct=not page_cache)
    except EmbStoreError as error:
        advice = "take less with --size, or --page-cache where it has no direct I/O"
        raise MeasuringError(f"{error}; {advice}") from error
    method = "through the page cache, which holds it" if page_cache else "direct I/O"
    figures = Figures(
        "block",
        f"{method}, a file of {size_bytes >> 20} MiB on {target.file_system}, "
        f"{rounds_text(seconds)}, a thread for each request in flight",
    )
    for operation, pattern in _CURVES:
        curve = figures.bandwidth.setdefault((operation, pattern), {})
        for size in _SIZES:
            for in_flight in _IN_FLIGHT:
                advance(f"{pattern} {operation} of {size:,} bytes, {in_flight} in flight")
                parameters = operation == "write", pattern == "random", size, in_flight
                try:
                    curve[size, in_flight] = median_rate(
                        partial(disk.mb_per_s, *parameters), seconds
                    )
                except EmbStoreError as error:
                    raise MeasuringError(str(error)) from error
        if (operation, pattern) != ("read", "sequential"):
            alone_ns = BLOCK_BYTES * 1e3 / curve[BLOCK_BYTES, 1]
            figures.idle_latency_ns[operation, pattern] = alone_ns
    return figures
