"""Saves and loads that take as long as on a device that this computer needn't have.

Files lie in this computer's memory. A save or a load does all that it does anywhere, and then waits
until as much time has passed as there would have been with the device moving its bytes. `n / w`
is those bytes by the device's bandwidth:

- *Save to a disk*: the page cache takes what is written, and the disk begins when the file is
  synced; a checkpoint is written in less time than the kernel leaves dirty pages alone. So it
  takes the save's own work, and n / w after it. w is the sequential bandwidth that the device's
  file has at 128 KiB, with as many requests in flight as were published: syncing a large file
  keeps a disk's queue full.
- *Cold load from a disk*: the kernel reads ahead while the CPU works, so it takes the longer
  of its own work and n / w. The kernel keeps fewer requests in flight than makers measure with;
  what a disk does then is seldom public, so this is the least that a cold load takes.
- *Warm load from a disk*: from the page cache, so nothing waits.
- *Memory*, as a dax mount: there is no page cache, so that each store goes to the device while the
  CPU waits, and each load is cold. One thread streams; how often a load reads a byte from the
  medium depends on the format.
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

__all__ = ["Effort", "PacedDevice"]

_DISK_REQUEST_BYTES: Final = 128 << 10
_MANY_IN_FLIGHT: Final = 1024  # beyond what any curve has: the most that was published
_MEMORY_BLOCK_BYTES: Final = 1 << 20
_ONE_THREAD: Final = 1
# Where the medium is waited for, and the phase that what is added counts as: the first that is.
_ON_DISK: Final[tuple[Phase, ...]] = ("sync",)
_IN_MEMORY: Final[tuple[Phase, ...]] = ("copy", "write", "sync")


@dataclass(frozen=True)
class Effort:
    """What had been done by a moment: seconds on the clock, and of the processor, in user space and
    in the kernel."""

    clock_s: float
    user_s: float
    kernel_s: float

    @staticmethod
    def now() -> Effort:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Effort(time.perf_counter(), used.ru_utime, used.ru_stime)


@dataclass(frozen=True)
class PacedDevice:
    """name: of the device. has_page_cache: whether files there are cached in DRAM, as of a disk
    and not of a dax mount. The others are MB/s, 10^6 bytes a second, of one stream: file_write
    by write(2), streamed_write by non-temporal stores into a mapping; the same of a disk."""

    name: str
    has_page_cache: bool
    file_write_mb_per_s: float
    streamed_write_mb_per_s: float
    read_mb_per_s: float

    @classmethod
    def of(cls, device: DeviceModel) -> PacedDevice:
        """Raises MediumError where nothing outlives a power cut there, NotPublishedError where the
        device's file lacks a figure."""
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
        self, moved_bytes: int, began: Effort, clock: PhaseClock, *, told_apart: bool
    ) -> float:
        """Wait as a save of so many bytes would, and return the seconds.

        clock: of the save; what is waited counts there. told_apart: whether its phases tell the
        medium's from the save's own work. Else its own work is the processor's time: on a disk, the
        kernel's too, which copies into the page cache.
        """
        done = Effort.now()
        passed_s = done.clock_s - began.clock_s
        medium_phases = _ON_DISK if self.has_page_cache else _IN_MEMORY
        if told_apart:
            own_s = passed_s - sum(clock.seconds.get(phase, 0.0) for phase in medium_phases)
        else:
            own_s = done.user_s - began.user_s
            if self.has_page_cache:
                own_s += done.kernel_s - began.kernel_s
            own_s = min(own_s, passed_s)  # several threads may have worked
        mapped = "copy" in clock.seconds
        mb_per_s = self.streamed_write_mb_per_s if mapped else self.file_write_mb_per_s
        known = [phase for phase in medium_phases if phase in clock.seconds]
        phase: Phase = known[0] if known else "write"
        return _wait(own_s + moved_bytes / (mb_per_s * 1e6) - passed_s, clock, phase)

    def wait_for_load(self, moved_bytes: int, clock: PhaseClock) -> float:
        """Wait as a load that moves so many bytes from the device would, and return the seconds."""
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
