"""How long a step takes, from what it does at which device.

A thread does one thing after the other: its own work, then accesses at one device, then at another.
So of all threads each device has as many at once as the share of a step that it takes (Little's
law), and how long it takes depends on how many those are. Both are met by going round until neither
changes. A device that is asked for little has about one thread at a time, and its latency counts;
one that all threads wait for gives its bandwidth, and no step can be faster than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pmemlab.planning.accesses import DeviceAccess
from pmemlab.planning.tiers import PlannedDevice

__all__ = ["LookupTime", "lookup_time"]

_ROUNDS = 200
_CLOSE_ENOUGH = 1e-6


@dataclass(frozen=True)
class LookupTime:
    """Of one id looked up (and trained) by one of several threads, in nanoseconds.

    by_device: by name. threads_at: of all threads, those at a device at a time.
    """

    cpu_ns: float
    by_device: Mapping[str, float]
    threads_at: Mapping[str, float]

    @property
    def total_ns(self) -> float:
        return self.cpu_ns + sum(self.by_device.values())


def lookup_time(
    cpu_ns: float,
    accesses: Sequence[DeviceAccess],
    devices: Mapping[str, PlannedDevice],
    units: Mapping[str, int],
    threads: int,
) -> LookupTime:
    """cpu_ns: what isn't a device's, for each id. devices: by name. units: of each device, among
    which its threads are spread evenly; 1 where it isn't named.
    """
    names = list(dict.fromkeys(each.device for each in accesses))
    asked: dict[tuple[DeviceAccess, int], float] = {}

    def at_threads(each: DeviceAccess, count: int) -> float:
        if (each, count) not in asked:
            asked[each, count] = _at_threads(devices[each.device], each, count)
        return asked[each, count]

    at = dict.fromkeys(names, 1.0)
    times: dict[str, float] = {}
    for _ in range(_ROUNDS):
        times = {
            name: sum(
                each.rate * _between(at_threads, each, at[name] / units.get(name, 1))
                for each in accesses
                if each.device == name
            )
            for name in names
        }
        total = cpu_ns + sum(times.values())
        wanted = {name: max(1.0, threads * times[name] / total) for name in names}
        moved = max((abs(wanted[name] / at[name] - 1) for name in names), default=0.0)
        if moved < _CLOSE_ENOUGH:
            break
        # Half of the way: a device that got slower draws more threads, and would overshoot.
        at = {name: math.sqrt(at[name] * wanted[name]) for name in names}
    return LookupTime(cpu_ns, times, at)


def _between(
    at_threads: Callable[[DeviceAccess, int], float], each: DeviceAccess, threads: float
) -> float:
    """Between whole numbers of threads, on the line between them; less than one is one."""
    low = max(1, math.floor(threads))
    part = max(0.0, threads - low)
    time_ns = at_threads(each, low)
    return time_ns + part * (at_threads(each, low + 1) - time_ns) if part else time_ns


def _at_threads(device: PlannedDevice, each: DeviceAccess, threads: int) -> float:
    cache = device.cache
    if cache is None:
        return device.time_ns(each.access, each.size_bytes, threads)
    # What is trained is dirty, so what gives way is written back.
    hit = cache.hit_ns(each.access, each.size_bytes, threads)
    miss = cache.dirty_miss_ns(each.access, each.size_bytes, threads)
    return (1 - each.memory_miss) * hit + each.memory_miss * miss
