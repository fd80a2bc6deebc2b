"""The time of a step, from its accesses to each device.

A thread does one thing after the other: its own work, then accesses to one device, then to another.
So the share of all threads that are at a device equals the share of a step that is spent there
(Little's law), and the time spent there depends on the number of threads there. Both conditions
hold for one length of a step, which bisection finds. A device with few accesses has about one
thread at a time, so its latency counts; a device that all threads wait for works at its bandwidth,
which no step can beat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pmemlab.model.planning.accesses import DeviceAccess
from pmemlab.model.planning.popularity import Floats
from pmemlab.model.planning.tiers import PlannedDevice

__all__ = ["LookupTime", "lookup_time"]

_CLOSE_ENOUGH = 1e-9


@dataclass(frozen=True)
class LookupTime:
    """Nanoseconds per id that one of several threads looks up (and trains).

    by_device: time at each device, by name.
    """

    cpu_ns: float
    by_device: Mapping[str, float]

    @property
    def total_ns(self) -> float:
        return self.cpu_ns + sum(self.by_device.values())


def lookup_time(
    cpu_ns: float,
    accesses: Sequence[DeviceAccess],
    devices: Mapping[str, PlannedDevice],
    units: Mapping[str, float],
    threads: int,
    batch_ids: int,
) -> LookupTime:
    """Returns the time per id. cpu_ns: time per id outside of devices. devices: by name. units:
    number of each device's units, over which threads spread evenly; 1 if not given. If a machine
    has a share of a unit, other machines are assumed to load the rest alike. batch_ids: per thread.
    """
    visited = [
        _VisitedDevice(
            devices[name],
            [visit for visit in accesses if visit.device == name],
            units.get(name, 1),
            threads,
            batch_ids,
        )
        for name in dict.fromkeys(visit.device for visit in accesses)
    ]
    low = cpu_ns + sum(float(visit.times.min()) for visit in visited)
    high = cpu_ns + sum(float(visit.times.max()) for visit in visited)
    # With longer steps, fewer threads are at a device at a time, so each takes less time there.
    while high - low > _CLOSE_ENOUGH * high:
        middle = (low + high) / 2
        if cpu_ns + sum(visit.device_ns(middle) for visit in visited) > middle:
            low = middle
        else:
            high = middle
    # At the step length of a device's full bandwidth any number of threads may wait for it: all of
    # them in a slightly shorter step, few in a longer one. Interpolate so that the times add up to
    # the step.
    at_high = np.array([visit.device_ns(high) for visit in visited])
    at_low = np.array([visit.device_ns(low) for visit in visited])
    missing, waiting = high - cpu_ns - at_high.sum(), (at_low - at_high).sum()
    part = min(1.0, max(0.0, missing / waiting)) if waiting > 0 else 0.0
    times = {
        visit.name: float(time)
        for visit, time in zip(visited, at_high + part * (at_low - at_high), strict=True)
    }
    return LookupTime(cpu_ns, times)


class _VisitedDevice:
    """The time per id at one device.

    times: nanoseconds with 1, 2, ... threads at each unit, up to all of them; (n,). Between whole
    numbers of threads times are interpolated linearly; fewer than one thread counts as one.
    """

    def __init__(
        self,
        device: PlannedDevice,
        accesses: Sequence[DeviceAccess],
        units: float,
        threads: int,
        batch_ids: int,
    ) -> None:
        self.name = device.name
        self._units = units
        self._threads = threads
        counts = range(1, math.ceil(threads / units) + 1)
        self.times: Floats = np.array(
            [sum(_id_ns(device, access, n, batch_ids) for access in accesses) for n in counts]
        )

    def device_ns(self, step_ns: float) -> float:
        """Returns the nanoseconds at this device if an id takes `step_ns` in all.

        The number of threads here is `threads` times the share of the step that is spent here. If
        several numbers satisfy this, the smallest counts, since threads arrive one by one.
        """
        at_unit = np.arange(1, self.times.size + 1)
        short = self._threads * self.times / step_ns / self._units - at_unit
        (enough,) = np.nonzero(short <= 0)
        if enough.size == 0:  # all threads are here
            return float(self.times[-1])
        after = int(enough[0])
        if after == 0:
            return float(self.times[0])
        part = short[after - 1] / (short[after - 1] - short[after])
        return float(self.times[after - 1] * (1 - part) + self.times[after] * part)


def _id_ns(device: PlannedDevice, access: DeviceAccess, threads: int, batch_ids: int) -> float:
    """Returns the time per id of a kind of access. Accesses of a batch overlap, but a batch takes
    no less than a single access alone, as in the engine's pacing.
    """
    waits = min(1 / batch_ids, access.rate)
    return max(
        access.rate * _access_ns(device, access, threads),
        waits * device.alone_ns(access.access, access.size_bytes),
    )


def _access_ns(device: PlannedDevice, access: DeviceAccess, threads: int) -> float:
    cache = device.cache
    if cache is None:
        return device.time_ns(access.access, access.size_bytes, threads)
    # Trained rows are dirty, so evicted lines are written back.
    hit = cache.hit_ns(access.access, access.size_bytes, threads)
    miss = cache.dirty_miss_ns(access.access, access.size_bytes, threads)
    return (1 - access.memory_miss) * hit + access.memory_miss * miss
