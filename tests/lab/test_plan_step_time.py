"""The time of a look-up, in cases where a simple calculation gives it too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_devices import Device, Dram

from embstore.devices import Access
from pmemlab.model.planning.accesses import DeviceAccess
from pmemlab.model.planning.step_time import lookup_time

BATCH = 1000


def _access(device: str, rate: float = 1.0, miss: float = 0.0) -> DeviceAccess:
    return DeviceAccess(0, device, Access.LOAD, 256, rate, miss)


@dataclass(frozen=True)
class ManyInFlight(Device):
    """A device on which each thread has 128 accesses in flight."""

    def time_ns(self, *_: object) -> float:
        return self.latency / 128


def test_one_thread_waits_for_each_latency() -> None:
    fast, slow = Device("fast", latency=100.0), Device("slow", latency=300.0)
    accesses = [_access("fast", 2.0), _access("slow", 0.5)]
    time = lookup_time(50.0, accesses, {"fast": fast, "slow": slow}, {}, 1, BATCH)
    assert time.total_ns == pytest.approx(50 + 2 * 100 + 0.5 * 300)
    assert time.by_device == pytest.approx({"fast": 200, "slow": 150})


@given(st.integers(8, 200), st.floats(0, 1000))
def test_many_threads_get_the_bandwidth_of_their_bottleneck_device(
    threads: int, cpu_ns: float
) -> None:
    """256 bytes at 0.5 bytes/ns take 512 ns of the device per access, for any number of threads."""
    device = Device("slow", latency=10.0, bytes_a_ns=0.5)
    time = lookup_time(cpu_ns, [_access("slow")], {"slow": device}, {}, threads, BATCH)
    assert time.total_ns / threads == pytest.approx(512, rel=0.01)


def test_a_batch_with_few_reads_waits_for_the_whole_latency() -> None:
    disk = ManyInFlight("disk", latency=80_000.0)
    for batch_ids, expected_ns in ((1, 80_000), (100, 80_000 / 100), (12_800, 80_000 / 128)):
        time = lookup_time(0.0, [_access("disk")], {"disk": disk}, {}, 1, batch_ids)
        assert time.total_ns == pytest.approx(expected_ns)


def test_two_devices_are_used_at_the_same_time_by_different_threads() -> None:
    narrow = Device("narrow", latency=10.0, bytes_a_ns=0.5)
    wide = Device("wide", latency=10.0, bytes_a_ns=5.0)
    devices = {"narrow": narrow, "wide": wide}
    both = lookup_time(0.0, [_access("narrow"), _access("wide")], devices, {}, 32, BATCH)
    assert both.total_ns / 32 == pytest.approx(512, rel=0.05)
    assert 32 * both.by_device["narrow"] / both.total_ns > 28, "threads at the device at a time"


def test_several_disks_share_the_threads() -> None:
    disk = Device("disk", latency=10.0, bytes_a_ns=0.5)
    one, four = (
        lookup_time(0.0, [_access("disk")], {"disk": disk}, {"disk": n}, 32, BATCH) for n in (1, 4)
    )
    assert one.total_ns == pytest.approx(4 * four.total_ns, rel=0.01)


def test_memory_mode_waits_for_both_memories_on_each_miss() -> None:
    device = Device("m", cache=Dram(1 << 30, hit=100.0, miss=900.0))
    time = lookup_time(0.0, [_access("m", miss=0.25)], {"m": device}, {}, 1, BATCH)
    assert time.total_ns == pytest.approx(0.75 * 100 + 0.25 * 900)


@given(
    st.floats(1, 1000),
    st.floats(1, 1000),
    st.floats(0.1, 50),
    st.floats(0.1, 50),
    st.integers(1, 64),
)
def test_a_faster_device_is_never_slower(
    latency: float, other_latency: float, bandwidth: float, other_bandwidth: float, threads: int
) -> None:
    fast = Device("d", min(latency, other_latency), max(bandwidth, other_bandwidth))
    slow = Device("d", max(latency, other_latency), min(bandwidth, other_bandwidth))
    times = [
        lookup_time(30.0, [_access("d")], {"d": device}, {}, threads, BATCH).total_ns
        for device in (fast, slow)
    ]
    assert times[0] <= times[1] * 1.001
