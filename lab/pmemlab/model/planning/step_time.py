"""How long a step takes, from what it does at which device.

A thread does one thing after the other: its own work, then accesses at one device, then at another.
So of all threads each device has as many at a time as the share of a step that it takes (Little's
law), and how long it takes depends on how many those are. Both hold for one length of a step, which
is looked for. A device that is asked for little has about one thread at a time, and its latency
counts; one that all threads wait for gives its bandwidth, and no step can be faster than that.
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
    """Of one id looked up (and trained) by one of several threads, in nanoseconds.

    by_device: by name.
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
    """cpu_ns: what isn't a device's, for each id. devices: by name. units: of each device, among
    which its threads are spread evenly; 1 where it isn't named. With a share of a unit, whoever has
    the rest is taken to do as much there. batch_ids: of each thread.
    """
    visited = [
        _Visited(
            devices[name],
            [each for each in accesses if each.device == name],
            units.get(name, 1),
            threads,
            batch_ids,
        )
        for name in dict.fromkeys(each.device for each in accesses)
    ]
    low = cpu_ns + sum(float(each.times.min()) for each in visited)
    high = cpu_ns + sum(float(each.times.max()) for each in visited)
    # The longer a step, the fewer threads are at a device at a time, and the less it takes.
    while high - low > _CLOSE_ENOUGH * high:
        middle = (low + high) / 2
        if cpu_ns + sum(each.at_step_of(middle) for each in visited) > middle:
            low = middle
        else:
            high = middle
    # At the step of a device's whole bandwidth, any number of threads may be waiting for it: all of
    # them in a shorter step, few in a longer one. It's as many as make up the step.
    few = np.array([each.at_step_of(high) for each in visited])
    many = np.array([each.at_step_of(low) for each in visited])
    missing, waiting = high - cpu_ns - few.sum(), (many - few).sum()
    part = min(1.0, max(0.0, missing / waiting)) if waiting > 0 else 0.0
    times = {
        each.name: float(time)
        for each, time in zip(visited, few + part * (many - few), strict=True)
    }
    return LookupTime(cpu_ns, times)


class _Visited:
    """What an id takes at one device.

    times: with 1, 2, ... threads at each unit, up to all of them; (n,), in nanoseconds. Between
    whole numbers of threads they lie on the line; less than one is one.
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
            [sum(_id_ns(device, each, n, batch_ids) for each in accesses) for n in counts]
        )

    def at_step_of(self, step_ns: float) -> float:
        """Nanoseconds here, where an id takes `step_ns` in all.

        Threads here are `threads` times the share of the step that is spent here; the fewest for
        which that holds, since they come one by one.
        """
        at_unit = np.arange(1, self.times.size + 1)
        short = self._threads * self.times / step_ns / self._units - at_unit
        (enough,) = np.nonzero(short <= 0)
        if enough.size == 0:  # all of them are here
            return float(self.times[-1])
        after = int(enough[0])
        if after == 0:
            return float(self.times[0])
        part = short[after - 1] / (short[after - 1] - short[after])
        return float(self.times[after - 1] * (1 - part) + self.times[after] * part)


def _id_ns(device: PlannedDevice, each: DeviceAccess, threads: int, batch_ids: int) -> float:
    """Accesses of a batch overlap, but one takes no less than by itself, as the engine has it."""
    waits = min(1 / batch_ids, each.rate)
    return max(
        each.rate * _access_ns(device, each, threads),
        waits * device.alone_ns(each.access, each.size_bytes),
    )


def _access_ns(device: PlannedDevice, each: DeviceAccess, threads: int) -> float:
    cache = device.cache
    if cache is None:
        return device.time_ns(each.access, each.size_bytes, threads)
    # What is trained is dirty, so what gives way is written back.
    hit = cache.hit_ns(each.access, each.size_bytes, threads)
    miss = cache.dirty_miss_ns(each.access, each.size_bytes, threads)
    return (1 - each.memory_miss) * hit + each.memory_miss * miss
