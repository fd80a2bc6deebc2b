"""A GPU: rows in its memory, which its kernels read and write, and its bus to the host.

The time of an access is the bytes of all threads together divided by the memory's bandwidth; an
update reads and writes them. Rows from or to the host also cross the bus, which is a device of its
own (`GpuDevice.bus`): a store goes to the GPU, a load to the host.

Bandwidths are the makers', which kernels don't reach, and random rows are assumed to be as fast as
sequential ones. So a predicted time is a lower bound, except for rows in the GPU's cache. A batch
takes no less than a kernel's launch, if that time is known.
"""

from __future__ import annotations

from functools import cached_property

from embstore.devices import Access
from pmemlab.errors import LabError
from pmemlab.model.devices.device_file import DeviceFile
from pmemlab.model.devices.model import EngineConcurrency, SingleFileDevice

__all__ = ["GpuBus", "GpuDevice"]

_SEQUENTIAL = "sequential"
_STORES = (Access.STORE, Access.STORE_FLUSHED, Access.STORE_STREAMED)
_KERNEL_OPERATIONS: dict[Access, tuple[str, ...]] = {
    Access.LOAD: ("read",),
    Access.UPDATE: ("read", "write"),
    **dict.fromkeys(_STORES, ("write",)),
}
_BUS_OPERATIONS: dict[Access, tuple[str, ...]] = {
    Access.LOAD: ("to-host",),
    **dict.fromkeys(_STORES, ("to-device",)),
}


class _CeilingDevice(SingleFileDevice):
    """A device whose accesses are one or more operations in sequence, each at its ceiling."""

    def __init__(
        self,
        file: DeviceFile,
        concurrency: EngineConcurrency,
        operations: dict[Access, tuple[str, ...]],
    ) -> None:
        super().__init__(file, concurrency)
        self._operations = operations

    @property
    def cpu_cache_bytes(self) -> int:
        return 0

    @property
    def launch_ns(self) -> float:
        """Time to launch a kernel on a stream with waiting kernels; 0 if none is published."""
        return self.file.idle_latency.get(("launch", _SEQUENTIAL), 0.0)

    def missing(self, access: Access) -> LabError | None:
        if access in self._operations:
            return None
        return LabError(f"{self.name}: is a GPU, which does no {access.name}")

    def _time_ns(self, access: Access, size_bytes: int, threads: int) -> float:
        return sum(
            size_bytes * threads * 1e3 / self.file.ceilings[operation, _SEQUENTIAL]
            for operation in self._operations[access]
        )

    def _alone_ns(self, access: Access, size_bytes: int) -> float:
        return self.launch_ns + self._time_ns(access, size_bytes, 1)

    def bandwidth_mb_per_s(
        self, operation: str, pattern: str, size_bytes: int, threads: int
    ) -> float:
        del size_bytes, threads  # the ceiling holds for all
        if (operation, pattern) not in self.file.ceilings:
            raise self._unpublished(operation, pattern)
        return self.file.ceilings[operation, pattern]


class GpuBus(_CeilingDevice):
    def __init__(self, file: DeviceFile, concurrency: EngineConcurrency) -> None:
        super().__init__(file, concurrency, _BUS_OPERATIONS)
        self.name = f"{file.name} bus"


class GpuDevice(_CeilingDevice):
    def __init__(self, file: DeviceFile, concurrency: EngineConcurrency) -> None:
        super().__init__(file, concurrency, _KERNEL_OPERATIONS)

    @cached_property
    def bus(self) -> GpuBus:
        return GpuBus(self.file, self._concurrency)
