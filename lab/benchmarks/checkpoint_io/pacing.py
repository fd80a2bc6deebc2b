"""Paces saves and loads as on a device that this computer need not have.

Files lie in this computer's memory. A save or a load does its usual work, and then waits until as
much time has passed as with the device moving its bytes. `n / w` is these bytes divided by the
device's bandwidth:

- *Save to a disk*: writes go to the page cache, and the disk starts when the file is synced, since
  writing a checkpoint takes less time than the kernel leaves dirty pages alone. So a save takes its
  own work, and then n / w. w is the device file's sequential bandwidth at 128 KiB, with the most
  published requests in flight: syncing a large file keeps a disk's queue full.
- *Cold load from a disk*: the kernel reads ahead while the CPU works, so a load takes the longer of
  its own work and n / w. The kernel keeps fewer requests in flight than makers measure with; a
  disk's rate then is seldom public, so this is a lower bound of a cold load.
- *Warm load from a disk*: from the page cache, so it doesn't wait.
- *Memory*, as a DAX mount: there is no page cache, so each store goes to the device while the CPU
  waits, and each load is cold. One thread streams; how often a load reads each byte from the medium
  depends on the format.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.checkpoint_io.errors import MediumError
from benchmarks.checkpoint_io.phases import Phase, PhaseClock
from embstore.devices import Access

if TYPE_CHECKING:
    from pmemlab.model.devices import DeviceModel

__all__ = ["PacedDevice", "UsedTime"]

_DISK_REQUEST_BYTES: Final = 128 << 10
_MANY_IN_FLIGHT: Final = 1024  # above every curve's range: the most that was published
_MEMORY_BLOCK_BYTES: Final = 1 << 20
_ONE_THREAD: Final = 1
# The phases that wait for the medium; added time counts as the first of them that the save has.
_ON_DISK: Final[tuple[Phase, ...]] = ("sync",)
_IN_MEMORY: Final[tuple[Phase, ...]] = ("copy", "write", "sync")


@dataclass(frozen=True)
class UsedTime:
    """The time used up to a moment: wall-clock seconds, and CPU seconds in user space and in the
    kernel.
    """

    clock_s: float
    user_s: float
    kernel_s: float

    @staticmethod
    def now() -> UsedTime:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return UsedTime(time.perf_counter(), used.ru_utime, used.ru_stime)


@dataclass(frozen=True)
class PacedDevice:
    """A device to pace as. has_page_cache: whether its files are cached in DRAM: true for a disk,
    false for a DAX mount. The rates are MB/s, 10^6 bytes/s, of one stream: file_write by write(2),
    streamed_write by non-temporal stores into a mapping; both are equal for a disk.
    """

    name: str
    has_page_cache: bool
    file_write_mb_per_s: float
    streamed_write_mb_per_s: float
    read_mb_per_s: float

    @classmethod
    def from_model(cls, device: DeviceModel) -> PacedDevice:
        """Makes one from a device model. Raises MediumError if the device is volatile,
        NotPublishedError if its file lacks a figure.
        """
        if device.cache is not None:
            raise MediumError(
                f"--device {device.name}: is memory mode, which forgets all when the power goes; "
                "take the device behind its cache"
            )
        if device.bus is not None:
            raise MediumError(
                f"--device {device.name}: is a GPU, whose memory forgets all when the power goes; "
                "take a disk or persistent memory"
            )
        if device.is_addressable:
            writes, streamed, reads = (
                _MEMORY_BLOCK_BYTES * 1e3 / device.time_ns(access, _MEMORY_BLOCK_BYTES, _ONE_THREAD)
                for access in (Access.FILE_WRITE, Access.STORE_STREAMED, Access.LOAD)
            )
            return cls(device.name, False, writes, streamed, reads)
        writes, reads = (
            device.bandwidth_mb_per_s(operation, "sequential", _DISK_REQUEST_BYTES, _MANY_IN_FLIGHT)
            for operation in ("write", "read")
        )
        return cls(device.name, True, writes, writes, reads)

    def wait_for_save(
        self, moved_bytes: int, began: UsedTime, clock: PhaseClock, *, is_sync_separate: bool
    ) -> float:
        """Wait until a save of `moved_bytes` would end on the device; return the seconds waited.

        clock: the save's; the wait counts there. is_sync_separate: whether its phases separate the
        medium's time from the save's own work. If not, the own work is the CPU time: on a disk
        including the kernel's, which copies into the page cache.
        """
        now_used = UsedTime.now()
        passed_s = now_used.clock_s - began.clock_s
        medium_phases = _ON_DISK if self.has_page_cache else _IN_MEMORY
        if is_sync_separate:
            own_s = passed_s - sum(clock.seconds.get(phase, 0.0) for phase in medium_phases)
        else:
            own_s = now_used.user_s - began.user_s
            if self.has_page_cache:
                own_s += now_used.kernel_s - began.kernel_s
            own_s = min(own_s, passed_s)  # several threads may have worked
        mapped = "copy" in clock.seconds
        mb_per_s = self.streamed_write_mb_per_s if mapped else self.file_write_mb_per_s
        known = [phase for phase in medium_phases if phase in clock.seconds]
        phase: Phase = known[0] if known else "write"
        return _wait(own_s + moved_bytes / (mb_per_s * 1e6) - passed_s, clock, phase)

    def wait_for_load(self, moved_bytes: int, clock: PhaseClock) -> float:
        """Wait until a load of `moved_bytes` would end on the device; return the seconds waited."""
        passed_s = sum(clock.seconds.values())
        return _wait(moved_bytes / (self.read_mb_per_s * 1e6) - passed_s, clock, "read")


def _wait(seconds: float, clock: PhaseClock, phase: Phase) -> float:
    if seconds <= 0:
        return 0.0
    with clock(phase):
        ends = time.perf_counter() + seconds
        while (rest := ends - time.perf_counter()) > 0:
            time.sleep(rest)
    return seconds
