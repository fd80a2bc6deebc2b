"""The time of an access on each device, compared with published figures and simple reasoning."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.devices import Access
from pmemlab.errors import DeviceFileError, LabError, NotPublishedError
from pmemlab.model.devices import DeviceModel, EngineConcurrency, device_names, load_device
from pmemlab.model.devices import model as device_model
from pmemlab.model.devices.memory_mode import MemoryModeDevice

DEVICES = {name: load_device(name) for name in device_names()}
MEMORIES = [name for name, device in DEVICES.items() if device.kind == "memory"]
GPUS = ["a100-80", "gb200", "h100-sxm"]
DISKS = [name for name, device in DEVICES.items() if device.kind == "block"]
ADDRESSED = [
    Access.LOAD,
    Access.UPDATE,
    Access.STORE,
    Access.STORE_FLUSHED,
    Access.STORE_STREAMED,
]


def mb_per_s(device: DeviceModel, access: Access, size_bytes: int, threads: int) -> float:
    return size_bytes * threads * 1e3 / device.time_ns(access, size_bytes, threads)


def test_the_devices_that_plans_and_scenarios_name_exist() -> None:
    assert {
        "ddr4-2666-x6",
        "ddr5-snc",
        "optane-100-x1",
        "optane-100-x6",
        "optane-200-x6",
        "cxl-asic",
        "nvme-p4510",
        "sata-s4510",
        "optane-100-x6-memory-mode",
    } <= set(device_names())


@pytest.mark.parametrize("name", device_names())
def test_a_device_has_a_title_a_size_and_sources(name: str) -> None:
    device = DEVICES[name]
    assert device.name == name
    assert device.title
    assert device.capacity_bytes >= 8 * 10**10
    assert device.media_line_bytes in (64, 256, 4096)
    assert device.sources
    assert all((source.url or "").startswith("https://") for source in device.sources.values())
    assert device.is_addressable == (device.kind == "memory")
    assert (device.cpu_cache_bytes > 0) == device.is_addressable


@pytest.mark.parametrize(
    ("access", "size_bytes", "threads", "published"),
    [
        (Access.LOAD, 256, 1, 2700.8),
        (Access.LOAD, 256, 24, 37324.8),
        (Access.LOAD, 4096, 8, 21926.4),
        (Access.STORE, 256, 4, 2996.8),
        (Access.STORE_FLUSHED, 256, 8, 8516.2),
        (Access.STORE_STREAMED, 256, 4, 12467.2),
    ],
)
def test_an_access_has_its_published_bandwidth(
    access: Access, size_bytes: int, threads: int, published: float
) -> None:
    device = DEVICES["optane-100-x6"]
    assert mb_per_s(device, access, size_bytes, threads) == pytest.approx(published, rel=0.01)


def test_a_load_of_64_bytes_takes_as_long_as_one_of_256_on_optane() -> None:
    device = DEVICES["optane-100-x6"]
    assert mb_per_s(device, Access.LOAD, 64, 24) == pytest.approx(9830.4, rel=0.01)
    small = device.time_ns(Access.LOAD, 64, 24)
    assert device.time_ns(Access.LOAD, 256, 24) == pytest.approx(small, rel=0.1)


def test_a_part_of_a_line_costs_the_whole_line() -> None:
    for name in ("optane-100-x6", "cxl-asic"):
        whole = DEVICES[name].time_ns(Access.LOAD, 64, 1)
        assert DEVICES[name].time_ns(Access.LOAD, 1, 1) == whole
        assert DEVICES[name].time_ns(Access.LOAD, 65, 1) == DEVICES[name].time_ns(
            Access.LOAD, 128, 1
        )


def test_writes_to_optane_slow_down_beyond_four_threads_but_loads_do_not() -> None:
    one = DEVICES["optane-100-x1"]
    four, eight = (mb_per_s(one, Access.STORE_STREAMED, 256, threads) for threads in (4, 8))
    assert eight < 0.75 * four
    six = DEVICES["optane-100-x6"]
    four, eight = (mb_per_s(six, Access.LOAD, 256, threads) for threads in (4, 8))
    assert eight > 1.8 * four


def test_one_module_reads_6_6_and_writes_2_3_gb_per_second() -> None:
    device = DEVICES["optane-100-x1"]
    assert mb_per_s(device, Access.LOAD, 256, 4) == pytest.approx(6600, rel=0.02)
    assert mb_per_s(device, Access.STORE_STREAMED, 256, 1) == pytest.approx(2300, rel=0.02)


@pytest.mark.parametrize("name", [name for name in MEMORIES if name != "optane-200-x6"])
def test_an_update_costs_at_least_a_load_and_at_least_a_store(
    name: str,
) -> None:
    device = DEVICES[name]
    for size_bytes in (64, 256, 1024):
        for threads in (1, 4, 16):
            update = device.time_ns(Access.UPDATE, size_bytes, threads)
            assert update >= device.time_ns(Access.LOAD, size_bytes, threads)
            assert update >= device.time_ns(Access.STORE, size_bytes, threads) * (1 - 1e-9)


def test_few_rows_in_flight_are_bounded_by_latency_and_many_by_bandwidth() -> None:
    alone = load_device("optane-100-x6", EngineConcurrency(rows=1))
    assert alone.time_ns(Access.LOAD, 64, 1) == pytest.approx(305)
    assert alone.latency_ns("load", "random") == 305
    many = load_device("optane-100-x6", EngineConcurrency(rows=1000))
    assert mb_per_s(many, Access.LOAD, 64, 1) == pytest.approx(1802, rel=0.01)


def test_few_fetches_in_flight_have_idle_latency_and_many_have_peak_bandwidth() -> None:
    device = load_device("cxl-asic", EngineConcurrency(rows=4))
    # One thread with four lines in flight hardly loads the card: it has its idle latency, 244 ns.
    assert device.time_ns(Access.LOAD, 64, 1) == pytest.approx(245 / 4, rel=0.02)
    # 32 threads with 16 lines each exceed the card's bandwidth: the peak limits them.
    crowded = load_device("cxl-asic", EngineConcurrency(rows=16))
    assert mb_per_s(crowded, Access.LOAD, 64, 32) == pytest.approx(47_700, rel=0.03)


def test_latency_under_load_is_more_than_idle_latency() -> None:
    device = DEVICES["cxl-asic"]
    alone = device.time_ns(Access.LOAD, 256, 1)
    crowded = device.time_ns(Access.LOAD, 256, 16)
    assert crowded > 1.3 * alone


@pytest.mark.parametrize("name", MEMORIES)
@given(
    access=st.sampled_from(ADDRESSED),
    size_bytes=st.integers(1, 1 << 22),
    threads=st.integers(1, 200),
)
def test_no_access_is_free_or_faster_than_the_fastest_published_figure(
    name: str, access: Access, size_bytes: int, threads: int
) -> None:
    device = DEVICES[name]
    if device.missing(access) is not None:
        with pytest.raises(NotPublishedError):
            device.time_ns(access, size_bytes, threads)
        return
    time_ns = device.time_ns(access, size_bytes, threads)
    assert 0 < time_ns < 1e12
    fastest_mb_per_s = 115_000  # DDR4's loads by 24 threads
    assert size_bytes * threads * 1e3 / time_ns < fastest_mb_per_s


@pytest.mark.parametrize("name", [name for name in MEMORIES if name != "optane-200-x6"])
@given(size_bytes=st.sampled_from([64, 256, 1024, 4096]), access=st.sampled_from(ADDRESSED))
def test_bandwidth_does_not_grow_beyond_the_measured_threads(
    name: str, size_bytes: int, access: Access
) -> None:
    device = DEVICES[name]
    some, more = (mb_per_s(device, access, size_bytes, threads) for threads in (64, 4096))
    assert more == pytest.approx(some, rel=0.01)


def test_below_the_measured_threads_bandwidth_per_thread_is_constant() -> None:
    device = DEVICES["ddr4-2666-x6"]
    one, fewest = (mb_per_s(device, Access.STORE_FLUSHED, 256, threads) for threads in (1, 23))
    assert one == pytest.approx(fewest / 23)


def test_a_device_with_only_the_maker_s_peaks_has_no_access_times() -> None:
    device = DEVICES["optane-200-x6"]
    assert device.bandwidth_mb_per_s("load", "sequential", 256, 8) == 48_600
    with pytest.raises(NotPublishedError, match=r"optane-200-x6: no random load .*published"):
        device.time_ns(Access.LOAD, 256, 4)
    assert any("maker" in note for note in device.notes)


# --- Disks.


@pytest.mark.parametrize("name", DISKS)
def test_a_disk_has_no_loads_or_stores(name: str) -> None:
    device = DEVICES[name]
    assert not device.is_addressable
    for access in ADDRESSED:
        with pytest.raises(LabError, match=f"{name}: is a disk.*{access.name}"):
            device.time_ns(access, 64, 1)


def test_one_read_in_flight_takes_the_latency_and_many_reach_the_maker_s_rate() -> None:
    alone = load_device("nvme-p4510", EngineConcurrency(file_reads=1))
    assert alone.time_ns(Access.FILE_READ, 4096, 1) == pytest.approx(77_000)
    assert alone.time_ns(Access.FILE_READ, 4096, 8) == pytest.approx(77_000)
    many = load_device("nvme-p4510", EngineConcurrency(file_reads=256))
    assert 1e9 / many.time_ns(Access.FILE_READ, 4096, 1) == pytest.approx(637_000, rel=0.01)


def test_a_read_of_less_than_a_block_costs_the_block() -> None:
    for name in DISKS:
        device = DEVICES[name]
        assert device.time_ns(Access.FILE_READ, 64, 2) == device.time_ns(Access.FILE_READ, 4096, 2)


def test_appends_of_a_mebibyte_reach_the_sequential_rate() -> None:
    device = DEVICES["sata-s4510"]
    assert mb_per_s(device, Access.FILE_WRITE, 1 << 20, 1) == pytest.approx(510, rel=0.02)
    # Small appends run one after the other, so each takes its full latency.
    assert device.time_ns(Access.FILE_WRITE, 4096, 1) == pytest.approx(37_000)


@pytest.mark.parametrize("name", DISKS)
@given(threads=st.integers(1, 64), in_flight=st.integers(1, 256))
def test_larger_reads_take_longer_and_have_more_bandwidth(
    name: str, threads: int, in_flight: int
) -> None:
    device = disk_with(name, in_flight)
    sizes = [4096 << i for i in range(8)]
    times = [device.time_ns(Access.FILE_READ, size, threads) for size in sizes]
    for (size, time_ns), (larger, longer) in pairwise(zip(sizes, times, strict=True)):
        assert longer > time_ns
        assert larger / longer >= size / time_ns * 0.999


@cache
def disk_with(name: str, in_flight: int) -> DeviceModel:
    return load_device(name, EngineConcurrency(file_reads=in_flight))


# --- Memory mode.


def test_plain_devices_have_no_cache() -> None:
    assert DEVICES["optane-100-x6"].cache is None
    assert DEVICES["nvme-p4510"].cache is None


def test_memory_mode_has_the_published_media_accesses() -> None:
    device = DEVICES["optane-100-x6-memory-mode"]
    assert isinstance(device, MemoryModeDevice)
    counts = {key: sum(media.values()) for key, media in device.file.media_accesses.items()}
    assert counts == {
        ("read", "hit"): 1,
        ("read", "clean_miss"): 3,
        ("read", "dirty_miss"): 4,
        ("write", "hit"): 2,
        ("write", "clean_miss"): 4,
        ("write", "dirty_miss"): 5,
    }


def test_a_hit_in_memory_mode_costs_dram_and_a_miss_costs_both_media() -> None:
    device, dram, pmem = (
        DEVICES[name] for name in ("optane-100-x6-memory-mode", "ddr4-2666-x6", "optane-100-x6")
    )
    cache = device.cache
    assert cache is not None
    assert (cache.size_bytes, cache.line_bytes) == (192 * 10**9, 64)
    at = (256, 4)
    dram_read, dram_write = (dram.time_ns(a, *at) for a in (Access.LOAD, Access.STORE_STREAMED))
    pmem_read, pmem_write = (pmem.time_ns(a, *at) for a in (Access.LOAD, Access.STORE_STREAMED))
    assert cache.hit_ns(Access.LOAD, *at) == pytest.approx(dram_read)
    assert cache.clean_miss_ns(Access.LOAD, *at) == pytest.approx(
        dram_read + pmem_read + dram_write
    )
    assert cache.dirty_miss_ns(Access.LOAD, *at) == pytest.approx(
        dram_read + pmem_read + dram_write + pmem_write
    )
    # An update's line is later written back into the cache, which reads the line's tag first.
    assert cache.clean_miss_ns(Access.UPDATE, *at) - cache.clean_miss_ns(
        Access.LOAD, *at
    ) == pytest.approx(dram_read + dram_write)


def test_memory_mode_holds_no_files() -> None:
    with pytest.raises(LabError, match="volatile memory and holds no files"):
        DEVICES["optane-100-x6-memory-mode"].time_ns(Access.FILE_READ, 4096, 1)


# --- Arguments.


@pytest.mark.parametrize(
    ("access", "size_bytes", "threads", "argument"),
    [(99, 64, 1, "access"), (Access.LOAD, 0, 1, "size_bytes"), (Access.LOAD, 64, 0, "threads")],
)
def test_a_wrong_argument_is_named(
    access: Access, size_bytes: int, threads: int, argument: str
) -> None:
    with pytest.raises(LabError, match=f"{argument}: must be"):
        DEVICES["optane-100-x6"].time_ns(access, size_bytes, threads)


def test_an_unknown_device_s_error_suggests_a_similar_name() -> None:
    with pytest.raises(DeviceFileError, match=r"optane-100x6: .*did you mean optane-100-x"):
        load_device("optane-100x6")


def test_a_single_access_takes_its_idle_latency() -> None:
    optane, ddr4 = DEVICES["optane-100-x6"], DEVICES["ddr4-2666-x6"]
    assert optane.alone_ns(Access.LOAD, 64) == pytest.approx(305)
    assert optane.alone_ns(Access.STORE_STREAMED, 64) == pytest.approx(90.4, rel=0.01)
    assert DEVICES["optane-100-x6-memory-mode"].alone_ns(Access.LOAD, 64) == ddr4.alone_ns(
        Access.LOAD, 64
    )
    assert DEVICES["cxl-asic"].alone_ns(Access.LOAD, 64) == pytest.approx(244, rel=0.01)
    assert DEVICES["sata-s4510"].alone_ns(Access.FILE_READ, 100) == pytest.approx(110_000)
    # With one read in flight, only the rate at 4 KiB was published.
    optane_ssd = DEVICES["nvme-p4800x"]
    assert optane_ssd.alone_ns(Access.FILE_READ, 4096) == pytest.approx(1e9 / 108_300)
    assert optane_ssd.alone_ns(Access.FILE_READ, 1 << 20) < 500_000


@given(st.sampled_from(sorted(DEVICES)), st.sampled_from(list(Access)), st.integers(1, 1 << 20))
def test_a_single_access_takes_no_less_time_than_one_of_many(
    name: str, access: Access, size_bytes: int
) -> None:
    device = DEVICES[name]
    if device.missing(access) is not None:
        with pytest.raises(LabError):
            device.alone_ns(access, size_bytes)
        return
    one_of_many = device.time_ns(access, size_bytes, 1)
    if device.cache is not None:
        # In memory mode, an access alone is a hit without its later write-back.
        one_of_many = 0.0
    assert device.alone_ns(access, size_bytes) >= one_of_many * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "memory", "bus"), [("a100-80", 2039, 32), ("h100-sxm", 3350, 64), ("gb200", 8000, 225)]
)
def test_a_gpu_s_rows_move_at_the_bandwidth_of_its_memory_or_bus(
    name: str, memory: float, bus: float
) -> None:
    gpu = DEVICES[name]
    assert gpu.bus is not None
    for threads in (1, 8):
        for access, times in ((Access.LOAD, 1), (Access.STORE, 1), (Access.UPDATE, 2)):
            bytes_a_ns = 512 * threads * times / gpu.time_ns(access, 512, threads)
            assert bytes_a_ns == pytest.approx(memory)
        for access in (Access.LOAD, Access.STORE_FLUSHED):
            assert 512 * threads / gpu.bus.time_ns(access, 512, threads) == pytest.approx(bus)


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_neither_memory_nor_a_disk(name: str) -> None:
    gpu = DEVICES[name]
    assert (gpu.kind, gpu.is_addressable, gpu.cpu_cache_bytes) == ("gpu", False, 0)
    for access in (Access.FILE_READ, Access.FILE_WRITE):
        with pytest.raises(LabError, match=f"{name}: is a GPU, which does no FILE_"):
            gpu.time_ns(access, 4096, 1)
    assert gpu.bus is not None
    with pytest.raises(LabError, match=f"{name} bus: is a GPU, which does no UPDATE"):
        gpu.bus.time_ns(Access.UPDATE, 64, 1)
    with pytest.raises(NotPublishedError, match="no random read"):
        gpu.bandwidth_mb_per_s("read", "random", 64, 1)
    assert all(device.bus is None for device in DEVICES.values() if device.kind != "gpu")


def test_a_batch_on_a_gpu_takes_at_least_a_launch_if_its_file_has_the_launch_time(
    tmp_path: Path,
) -> None:
    whole = (Path(device_model.__file__).parent / "h100-sxm.yaml").read_text(encoding="utf-8")
    launch = "{operation: launch, pattern: sequential, value: 5, unit: us, source: memory}"
    own = tmp_path / "own.yaml"
    own.write_text(f"{whole}idle_latency:\n  - {launch}\n", encoding="utf-8")
    assert load_device(own).alone_ns(Access.LOAD, 64) == pytest.approx(5000, rel=1e-3)
    assert load_device("h100-sxm").alone_ns(Access.LOAD, 64) < 1


def test_a_gpu_s_file_without_its_bus_is_refused(tmp_path: Path) -> None:
    whole = (Path(device_model.__file__).parent / "h100-sxm.yaml").read_text(encoding="utf-8")
    own = tmp_path / "own.yaml"
    lines = [line for line in whole.splitlines() if "to-host" not in line]
    own.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DeviceFileError, match="ceilings: is missing for sequential to-host"):
        load_device(own)
