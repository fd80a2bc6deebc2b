"""The times of servers' accesses to a row in one memory."""

from __future__ import annotations

from dataclasses import dataclass

from embstore.devices import Access
from pmemlab.model.devices import DeviceModel

__all__ = ["RowTimes", "row_times"]


@dataclass(frozen=True)
class RowTimes:
    """Nanoseconds for one row.

    load, store: by all threads together, so n rows take n times this. lone_load, lone_store: by a
    single thread that finishes a row before the next. scan: by a single thread that reads adjacent
    rows. lookup: one dependent read, as in an index.
    """

    load_ns: float
    store_ns: float
    lone_load_ns: float
    lone_store_ns: float
    scan_ns: float
    lookup_ns: float


def row_times(device: DeviceModel, row_bytes: int, threads: int) -> RowTimes:
    """Returns the times of a row by a device's published bandwidth and latency.

    Stores are streamed, as libpmem's copies are from 256 bytes on (its PMEM_MOVNT_THRESHOLD). A
    lone row takes the longer of the idle latency and of what bandwidth allows one thread.
    """

    def alone_ns(access: Access, operation: str, pattern: str) -> float:
        return max(device.latency_ns(operation, pattern), device.time_ns(access, row_bytes, 1))

    return RowTimes(
        load_ns=device.time_ns(Access.LOAD, row_bytes, threads) / threads,
        store_ns=device.time_ns(Access.STORE_STREAMED, row_bytes, threads) / threads,
        lone_load_ns=alone_ns(Access.LOAD, "load", "random"),
        lone_store_ns=alone_ns(Access.STORE_STREAMED, "ntstore", "sequential"),
        scan_ns=row_bytes * 1e3 / device.bandwidth_mb_per_s("load", "sequential", row_bytes, 1),
        lookup_ns=device.latency_ns("load", "random"),
    )
