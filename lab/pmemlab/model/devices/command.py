"""The output of `pmemlab model devices`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

from embstore.devices import Access
from pmemlab.errors import NotPublishedError
from pmemlab.model.devices.curves import BandwidthCurve, LoadedLatencyCurve
from pmemlab.model.devices.device_file import Curve, DeviceFile
from pmemlab.model.devices.loading import device_names, load_device
from pmemlab.model.devices.memory_mode import MemoryModeDevice
from pmemlab.model.devices.model import DeviceModel, SingleFileDevice

__all__ = ["print_device", "print_devices"]

_THREADS = 8
_ROW_BYTES = 256
_BLOCK_BYTES = 4096
_SHOWN_SIZES = (64, 128, 256, 512, 1024, 4096, 16384, 65536, 131072, 1 << 20)
_SHOWN_THREADS = 8


def print_devices(console: Console) -> None:
    """Prints all devices that come with the lab, each with its times to access a row or a block."""
    table = Table(
        Column("device", no_wrap=True),
        "kind",
        Column("a unit, GB", justify="right"),
        Column(f"read, ns\n1 of {_THREADS} threads", justify="right"),
        Column("write, ns", justify="right"),
        Column("what it is", overflow="fold"),
        caption=f"reads and writes: of {_ROW_BYTES} bytes in memory (a GPU's by its kernels), "
        f"{_BLOCK_BYTES:,} on disks; "
        "pmemlab model devices NAME has curves and sources",
        box=None,
    )
    for name in device_names():
        device = load_device(name)
        read, write = _times(device)
        capacity = f"{device.capacity_bytes / 1e9:,.0f}"
        table.add_row(name, device.kind, capacity, read, write, device.title)
    console.print(table)


def print_device(console: Console, name_or_path: str) -> None:
    """Prints a device's curves, notes and sources. Raises DeviceFileError."""
    device = load_device(name_or_path)
    console.print(f"{device.name}: {device.title}", style="bold", markup=False)
    console.print(
        f"{device.kind}, {device.capacity_bytes / 1e9:,.0f} GB a unit, lines of "
        f"{device.media_line_bytes:,} bytes"
        + (
            f", behind {device.cpu_cache_bytes >> 20} MiB of cache"
            if device.cpu_cache_bytes
            else ""
        )
    )
    if isinstance(device, MemoryModeDevice):
        _print_memory_mode(console, device)
    elif isinstance(device, SingleFileDevice):
        _print_curves(console, device.file)
    for note in device.notes:
        console.print(f"\nnote: {note}", markup=False)
    console.print("\nsources", style="bold")
    for source in device.sources.values():
        origin = source.url or f"on {source.measured}"
        console.print(f"  {source.title} ({origin}): {source.what}", markup=False)


def _print_curves(console: Console, file: DeviceFile) -> None:
    for (operation, pattern), idle_ns in file.idle_latency.items():
        console.print(f"idle latency, {pattern} {operation}: {idle_ns:,.0f} ns", markup=False)
    for (operation, pattern), mb_per_s in file.ceilings.items():
        text = f"at most, {pattern} {operation}: {mb_per_s:,.0f} MB/s"
        console.print(text, markup=False)
    for curve, bandwidth in file.bandwidth.items():
        console.print()
        console.print(_bandwidth_table(curve, bandwidth, file.kind))
    for curve, loaded in file.loaded_latency.items():
        console.print()
        console.print(_loaded_latency_table(curve, loaded))


def _bandwidth_table(curve: Curve, bandwidth: BandwidthCurve, kind: str) -> Table:
    operation, pattern = curve
    counts = sorted({count for row in bandwidth.rows for count in row.threads})
    if len(counts) > _SHOWN_THREADS:  # as many as fit on a screen, with the first and the last
        step = (len(counts) - 1) / (_SHOWN_THREADS - 1)
        counts = sorted({counts[round(i * step)] for i in range(_SHOWN_THREADS)})
    counted = "threads" if kind == "memory" else "in flight"
    table = Table(
        Column("bytes", justify="right"),
        *(
            Column(f"{count} {counted}" if i == 0 else str(count), justify="right")
            for i, count in enumerate(counts)
        ),
        title=f"{pattern} {operation}, MB/s",
        title_justify="left",
        box=None,
    )
    shown = [row for row in bandwidth.rows if row.size_bytes in _SHOWN_SIZES]
    for row in shown or bandwidth.rows:
        values = dict(zip(row.threads, row.mb_per_s, strict=True))
        cells = (f"{values[count]:,.0f}" if count in values else "" for count in counts)
        table.add_row(f"{row.size_bytes:,}", *cells)
    return table


def _loaded_latency_table(curve: Curve, loaded: LoadedLatencyCurve) -> Table:
    operation, pattern = curve
    table = Table(
        Column("threads", justify="right"),
        Column("idle, ns", justify="right"),
        Column("half of most, ns", justify="right"),
        Column("most, ns", justify="right"),
        Column("most, MB/s", justify="right"),
        title=f"{pattern} {operation}, latency under load",
        title_justify="left",
        box=None,
    )
    for row in loaded.rows:
        max_mb_per_s = row.mb_per_s[-1]
        latencies = (row.latency_ns[0], row.latency_ns_at(max_mb_per_s / 2), row.latency_ns[-1])
        table.add_row(str(row.threads), *(f"{ns:,.0f}" for ns in latencies), f"{max_mb_per_s:,.0f}")
    return table


def _print_memory_mode(console: Console, device: MemoryModeDevice) -> None:
    cache = device.cache
    console.print(
        f"{device.dram.name} before {device.pmem.name}: {cache.size_bytes / 1e9:,.0f} GB, "
        f"direct-mapped, lines of {cache.line_bytes} bytes"
    )
    console.print()
    table = Table(
        f"{_ROW_BYTES} bytes, 1 of {_THREADS} threads, ns",
        *(Column(name, justify="right") for name in ("hit", "clean miss", "dirty miss")),
        box=None,
    )
    for access in (Access.LOAD, Access.UPDATE, Access.STORE_STREAMED):
        outcomes = (cache.hit_ns, cache.clean_miss_ns, cache.dirty_miss_ns)
        cells = (f"{outcome(access, _ROW_BYTES, _THREADS):,.0f}" for outcome in outcomes)
        table.add_row(access.name.lower().replace("_", " "), *cells)
    console.print(table)


def _times(device: DeviceModel) -> tuple[str, str]:
    if device.is_addressable or device.bus is not None:
        accesses, size_bytes = (Access.LOAD, Access.UPDATE), _ROW_BYTES
    else:
        accesses, size_bytes = (Access.FILE_READ, Access.FILE_WRITE), _BLOCK_BYTES
    times = []
    for access in accesses:
        try:
            time_ns = device.time_ns(access, size_bytes, _THREADS)
            times.append(f"{time_ns:,.0f}" if time_ns >= 10 else f"{time_ns:.2g}")
        except NotPublishedError:
            times.append("not public")
    read, write = times
    return read, write
