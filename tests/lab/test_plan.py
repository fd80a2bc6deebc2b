"""Plans: their bytes, rates and prices, their ranking, and the errors for bad arguments."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from full_disk import fill_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_devices import CXL, DISK, DRAM, MEMORY_MODE, PMEM, Device

import embstore as es
from embstore.devices import Access
from embstore.options import StorageType
from pmemlab.cli import main
from pmemlab.errors import NotPublishedError, PlanError
from pmemlab.model.devices.loading import device_path
from pmemlab.model.planning.accesses import SSDHASH_WRITE_AMPLIFICATION, StepAccesses, step_accesses
from pmemlab.model.planning.cpu_work import CpuWork, measure_cpu_work
from pmemlab.model.planning.hit_rates import LeastFrequent, LeastRecent
from pmemlab.model.planning.plan import Plans, Workload, make_plans
from pmemlab.model.planning.planned_tables import planned_table
from pmemlab.model.planning.popularity import BoundedZipf
from pmemlab.model.planning.presentation import plans_document
from pmemlab.model.planning.prices import Holding, MachineShape, Prices, PriceSource, load_prices
from pmemlab.model.planning.row_bytes import RowShape
from pmemlab.model.planning.settings import Settings
from pmemlab.model.planning.tiers import (
    DeviceAssignment,
    DevicePool,
    device_role,
    named_devices,
    storage_type_by_name,
)

GB = 10**9
SOURCE = PriceSource("a test", "none", "2026-01-01")
CPU = CpuWork(60.0, 370.0, "given")
POOL: DevicePool = {"DRAM": (DRAM,), "PMEM": (PMEM,), "SSD": (DISK,)}
ROWS, SKEW = 100_000_000, 1.05
SHAPE = RowShape(64, 1)
ITEMS = planned_table("items", rows=ROWS, dim=64, skew=SKEW)
TABLE = Workload((ITEMS,), lookups_per_s=1e6, batch_ids=50_000)


def _machine(name: str, usd_per_hour: float, **holds_gb: float) -> MachineShape:
    holds = tuple(Holding((device,), capacity_gb=gb) for device, gb in holds_gb.items())
    return MachineShape(name, 64, usd_per_hour, holds, SOURCE)


MEMORY = _machine("memory", 4.0, dram=64)
MIXED = _machine("mixed", 3.0, dram=16, pmem=128)
STORAGE = _machine("storage", 1.0, dram=16, disk=1000)
PRICES = Prices(Path("prices.yaml"), 730, (MEMORY, MIXED, STORAGE))


def _plans(workload: Workload = TABLE, **changes: Any) -> Plans:
    given: dict[str, Any] = {"pool": POOL, "prices": PRICES, "cpu": CPU, **changes}
    return make_plans(workload, **given)


def _plan_of(plans: Plans, storage_type: str) -> Any:
    return next(plan for plan in plans.plans if plan.storage_type == storage_type)


@pytest.fixture(autouse=True)
def _signal_handler_restored() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def test_every_storage_type_without_gpu_memory_is_planned_once_per_choice_of_devices() -> None:
    planned = [plan.storage_type for plan in _plans().plans]
    assert sorted(planned) == sorted(
        kind.name
        for kind in StorageType
        if "HBM" not in kind.name and kind.name not in ("SSDHASH", "LEVELDB")
    )
    two = _plans(pool={"DRAM": (DRAM,), "PMEM": (PMEM, CXL), "SSD": (DISK,)})
    on = [p.devices for p in two.plans if p.storage_type == "DRAM_PMEM_SSDHASH"]
    assert sorted(on) == [("dram", "cxl", "disk"), ("dram", "pmem", "disk")]


def test_bytes_and_prices_add_up() -> None:
    """A row has 512 bytes, and 48 more in PMem. The index and other bytes beside a row take 68.8
    bytes of DRAM for a row in DRAM, and 21.4 for a row in PMem."""
    plan = _plan_of(_plans(), "DRAM_PMEM")
    first, below = plan.tiers
    assert (first.rows, below.rows) == (10_000_000, 90_000_000)
    assert (first.bytes, below.bytes) == (10_000_000 * 512, 90_000_000 * 560)
    assert plan.index_bytes == 10_000_000 * 68.8 + 90_000_000 * 21.4
    dram = (first.bytes + plan.index_bytes) / (0.9 * 16 * GB)
    pmem = below.bytes / (0.9 * 128 * GB)
    assert (plan.machine, plan.machines) == ("mixed", math.ceil(max(dram, pmem)))
    assert plan.machines == 1
    assert plan.usd_per_month == 3.0 * 730
    assert plan.usd_per_million_lookups == pytest.approx(3.0 / 3600)  # a million a second
    assert plan.lookups_per_s == pytest.approx(
        plan.threads * 1e9 / (plan.cpu_ns + sum(plan.device_ns.values()))
    )
    assert plan.step_ms == pytest.approx(50_000 * plan.threads / plan.lookups_per_s * 1e3)
    assert plan.cpu_ns == pytest.approx(60 + 370 * plan.moved_rows)
    assert sum(tier.hit_rate for tier in plan.tiers) == pytest.approx(1)


def test_the_cheapest_machines_are_chosen_and_the_cheapest_plan_comes_first() -> None:
    plans = _plans().plans
    prices = [plan.usd_per_month for plan in plans]
    assert prices == sorted(prices, key=lambda price: price or math.inf)
    assert _plan_of(_plans(), "DRAM_SSDHASH").machine == "storage"
    cheap = replace(MEMORY, name="cheap", usd_per_hour=0.5)
    assert (
        _plan_of(_plans(prices=replace(PRICES, machines=(MEMORY, cheap))), "DRAM").machine
        == "cheap"
    )


def test_more_machines_are_planned_if_one_is_too_small() -> None:
    prices = replace(PRICES, machines=(MEMORY,))
    whole = _plan_of(_plans(prices=prices), "DRAM")
    assert whole.bound_by == "bytes on dram"
    assert whole.machines == math.ceil(100_000_000 * (528 + 20.9) / (0.9 * 64 * GB)) == 1
    limited = _plan_of(_plans(prices=prices, settings=Settings(dram_bytes=5 * GB)), "DRAM")
    assert limited.machines == math.ceil(100_000_000 * (528 + 20.9) / (5 * GB)) == 11
    assert limited.usd_per_month == pytest.approx(11 * 4.0 * 730)


def test_more_machines_are_planned_if_one_is_too_slow() -> None:
    busy = replace(TABLE, lookups_per_s=1e7)
    plan = _plan_of(
        _plans(busy, pool={**POOL, "PMEM": ()}, settings=Settings(threads=2)), "DRAM_SSDHASH"
    )
    assert plan.bound_by == "rate"
    hottest = BoundedZipf(ROWS, SKEW).hottest_share
    busiest = busy.lookups_per_s * (hottest + (1 - hottest) / plan.machines)
    assert plan.lookups_per_s >= busiest
    fewer = busy.lookups_per_s * (hottest + (1 - hottest) / (plan.machines - 1))
    assert fewer > plan.lookups_per_s * 0.9


def test_the_parts_of_a_machine_are_together_no_faster_than_the_whole() -> None:
    pool = named_devices(["ddr4-2666-x6"])
    rates = {}
    for parts in (1, 8):
        holds = (Holding(("ddr4-2666-x6",), capacity_gb=10**6, units=2 / parts),)
        machine = MachineShape("a part", 96 // parts, 1, holds, SOURCE)
        plans = _plans(
            pool=pool,
            prices=replace(PRICES, machines=(machine,)),
            settings=Settings(threads=96),
            storage_types=[StorageType.DRAM],
        )
        rates[parts] = parts * _plan_of(plans, "DRAM").lookups_per_s
    assert 0.6 < rates[8] / rates[1] <= 1


def test_a_row_too_hot_for_one_machine_is_an_error() -> None:
    with pytest.raises(PlanError, match=r"the row that is asked for most is in one machine"):
        _plans(replace(TABLE, lookups_per_s=1e12), storage_types=[StorageType.DRAM])


@given(st.floats(50, 400), st.floats(1.1, 20))
@settings(max_examples=15, deadline=None)
def test_a_faster_device_gives_a_faster_plan(latency: float, factor: float) -> None:
    speeds = []
    for device in (
        replace(PMEM, latency=latency),
        replace(PMEM, latency=latency * factor, bytes_a_ns=PMEM.bytes_a_ns / factor),
    ):
        pool: DevicePool = {**POOL, "PMEM": (device,)}
        speeds.append(_plan_of(_plans(pool=pool), "DRAM_PMEM").lookups_per_s)
    assert speeds[0] > speeds[1]


def test_a_larger_first_tier_is_faster_and_takes_more_dram() -> None:
    plans = _plans(settings=Settings(first_tier_fractions=(0.05, 0.2))).plans
    small, large = sorted(
        (p for p in plans if p.storage_type == "DRAM_SSDHASH"), key=lambda p: p.tiers[0].bytes
    )
    assert (small.first_tier_fraction, large.first_tier_fraction) == (0.05, 0.2)
    assert small.hit_rate < large.hit_rate
    assert small.lookups_per_s < large.lookups_per_s
    assert [p.storage_type for p in plans].count("DRAM") == 1


def test_serving_is_faster_than_training() -> None:
    serving = _plans(replace(TABLE, training=False))
    for kind in ("DRAM", "DRAM_PMEM", "PMEM_LIBPMEM"):
        assert _plan_of(serving, kind).lookups_per_s > _plan_of(_plans(), kind).lookups_per_s


def test_devices_that_no_machine_holds_are_planned_without_a_price() -> None:
    plans = _plans(pool={**POOL, "PMEM": (CXL, PMEM)}).plans
    unpriced = [plan for plan in plans if plan.usd_per_month is None]
    assert {plan.devices for plan in unpriced if plan.storage_type == "DRAM_PMEM"} == {
        ("dram", "cxl")
    }
    assert all(plan.machines is None and plan.lookups_per_s > 0 for plan in unpriced)
    assert plans[-len(unpriced) :] == tuple(unpriced)
    assert "prices.yaml holds cxl" in str(unpriced[0].why_unpriced)
    together = [plan for plan in plans if plan.devices == ("dram", "pmem", "disk")]
    assert "holds dram and pmem and disk together" in str(together[0].why_unpriced)


def test_memory_mode_is_slower_than_dram_and_faster_than_all_misses() -> None:
    machine = _machine("m", 1.0, **{"memory-mode": 1000, "dram": 1000})
    pool: DevicePool = {"DRAM": (DRAM, MEMORY_MODE), "PMEM": (PMEM,), "SSD": ()}
    plans = _plans(pool=pool, prices=replace(PRICES, machines=(machine,))).plans
    by_device = {p.devices[0]: p for p in plans if p.storage_type == "DRAM"}
    cached, plain = by_device["memory-mode"], by_device["dram"]
    assert cached.lookups_per_s < plain.lookups_per_s
    assert cached.device_ns["memory-mode"] < 9 * plain.device_ns["dram"]
    # In memory mode all persistent memory is main memory, so none is left for a tier.
    assert not any("memory-mode" in (p.index_device, *p.devices) for p in plans if len(p.tiers) > 1)
    assert {p.index_device for p in plans if p.storage_type == "PMEM_LIBPMEM"} == {"dram"}


def _step_in_three_tiers(
    placement_class: type[LeastFrequent | LeastRecent],
) -> tuple[StepAccesses, dict[tuple[int | None, Access, int], float]]:
    """Returns a step in three tiers, and its accesses per id: (tier, access, bytes) -> rate."""
    placement = placement_class(BoundedZipf(1_000_000, 1.0), [100_000, 300_000])
    placed = DeviceAssignment(StorageType.DRAM_PMEM_SSDHASH, (DRAM, PMEM, DISK), DRAM)
    step = step_accesses(placed, placement, SHAPE, batch_ids=10_000, threads=1, training=True)
    return step, {(a.tier, a.access, a.size_bytes): a.rate for a in step.accesses}


def test_promotions_and_demotions_of_a_step_balance() -> None:
    """As many rows are demoted to a tier as are promoted from it and from the tiers below it."""
    step, rates = _step_in_three_tiers(LeastRecent)
    up = step.moved_rows
    assert rates[0, Access.STORE, 512] == pytest.approx(up)
    assert rates[1, Access.STORE, 512] == rates[1, Access.STORE, 48] == pytest.approx(up)
    read = rates[2, Access.FILE_READ, 4096] + rates[2, Access.FILE_READ, 8192]
    # The middle tier's loads: rows that are promoted, whose weights the look-up has read before,
    # and rows that are demoted, as many as are promoted from the disk.
    assert rates[1, Access.LOAD, 512] == pytest.approx(up)
    assert rates[1, Access.LOAD, 256] == pytest.approx(up - read)
    written = rates[2, Access.FILE_WRITE, 1 << 19] * (1 << 19) / (SSDHASH_WRITE_AMPLIFICATION * 576)
    assert written == pytest.approx(read)
    assert rates[0, Access.UPDATE, 512] == pytest.approx(step.distinct_rows)  # none is cached
    assert step.hit_rates[1] + step.hit_rates[2] > up > step.hit_rates[2]


def test_lfu_promotes_rows_of_a_disk_but_not_of_the_memory_above_it() -> None:
    step, rates = _step_in_three_tiers(LeastFrequent)
    read = rates[2, Access.FILE_READ, 4096] + rates[2, Access.FILE_READ, 8192]
    assert step.moved_rows == pytest.approx(read)
    for tier in 0, 1:
        assert (
            rates[tier, Access.STORE, 512] == rates[tier, Access.LOAD, 512] == pytest.approx(read)
        )
    # The rows that stay in PMem: the look-up reads their weights, and the apply updates them.
    resting = step.missed_rows - read
    assert rates[1, Access.LOAD, 256] == rates[1, Access.UPDATE, 512] == pytest.approx(resting)


def test_rows_in_the_cpu_s_cache_cause_no_device_accesses() -> None:
    placement = LeastFrequent(BoundedZipf(10_000, 1.0), [])
    loads = []
    for cache_bytes in (0, 1 << 20, 1 << 30):
        placed = DeviceAssignment(
            StorageType.DRAM, (replace(DRAM, cpu_cache_bytes=cache_bytes),), DRAM
        )
        step = step_accesses(placed, placement, SHAPE, batch_ids=1000, threads=1, training=True)
        loads.append(sum(a.rate for a in step.accesses if a.access is Access.LOAD and a.tier == 0))
    assert loads[0] == pytest.approx(1)
    assert 0 < loads[1] < 1
    assert loads[2] == 0


def test_apply_reads_a_lower_tier_s_weights_again_unless_the_cpu_has_cached_them() -> None:
    placement = LeastRecent(BoundedZipf(1_000_000, 1.0), [100_000])  # LRU promotes rows

    def step_row_bytes(cpu_cache_bytes: int, threads: int) -> float:
        dram = replace(DRAM, cpu_cache_bytes=cpu_cache_bytes)
        placed = DeviceAssignment(StorageType.DRAM_PMEM, (dram, PMEM), dram)
        step = step_accesses(
            placed, placement, SHAPE, batch_ids=10_000, threads=threads, training=True
        )
        loads = (a for a in step.accesses if a.tier == 1 and a.access is Access.LOAD)
        return sum(a.rate * a.size_bytes for a in loads) / step.moved_rows

    weights, row, header = 256, 512, 48
    assert step_row_bytes(0, threads=1) == pytest.approx(weights + row + header)
    assert step_row_bytes(8 << 20, threads=1) == pytest.approx(row + header)
    assert step_row_bytes(8 << 20, threads=16) == pytest.approx(weights + row + header)


def test_if_no_plan_fits_the_error_says_how_many_machines_would() -> None:
    with pytest.raises(
        PlanError,
        match=r"nothing fits:\n  DRAM on dram: needs 55 of memory, for "
        r"its bytes on dram; --max-machines 55 would let it",
    ):
        _plans(
            pool={"DRAM": (DRAM,)},
            settings=Settings(dram_bytes=GB, max_machines=50),
        )
    some = _plans(settings=Settings(dram_bytes=4 * GB, max_machines=2))
    assert {"DRAM_PMEM", "DRAM_SSDHASH"} <= {plan.storage_type for plan in some.plans}
    (left,) = [each for each in some.left_out if each.storage_type == "DRAM"]
    assert "needs 14 of memory" in left.why


def test_a_device_without_the_needed_figures_is_left_out_with_the_reason() -> None:
    class Unmeasured(Device):
        def time_ns(self, access: Access, *_: int) -> float:
            raise NotPublishedError(f"{self.name}: no random {access.name} was published")

    plans = _plans(pool={**POOL, "PMEM": (Unmeasured("new", media_line_bytes=256),)})
    assert {each.why for each in plans.left_out} == {"new: no random LOAD was published"}
    assert not any("new" in plan.devices for plan in plans.plans)


@pytest.mark.parametrize(
    ("device", "role"),
    [(DRAM, "DRAM"), (PMEM, "PMEM"), (CXL, "PMEM"), (DISK, "SSD"), (MEMORY_MODE, "DRAM")],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_kind_of_device_gets_its_tier(device: Device, role: str) -> None:
    assert device_role(device) == role


def test_each_of_the_lab_s_devices_gets_its_tier() -> None:
    drams = ["ddr4-2666-x6", "ddr5-snc", "optane-100-x6-memory-mode"]
    others = ["optane-100-x6", "cxl-asic", "optane-200-x6", "nvme-p4510", "sata-s4510"]
    pool = named_devices([*drams, *others, "gb200", "HBM=a100-80"])
    assert {role: [device.name for device in devices] for role, devices in pool.items()} == {
        "HBM": ["gb200", "a100-80"],
        "DRAM": ["ddr4-2666-x6", "ddr5-snc", "optane-100-x6-memory-mode"],
        "PMEM": ["optane-100-x6", "cxl-asic", "optane-200-x6"],
        "SSD": ["nvme-p4510", "sata-s4510"],
    }


def test_a_memory_without_a_published_latency_must_be_given_with_its_tier() -> None:
    with pytest.raises(PlanError, match=r"--devices x: say DRAM=x or PMEM=x"):
        device_role(Device("x", publishes_latency=False))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["DRAM=nvme-p4510"], "nvme-p4510 is a disk, .* can't be a first tier.*; give SSD=nvme"),
        (["PMEM=sata-s4510"], "sata-s4510 is a disk"),
        (["SSD=optane-100-x6"], "optane-100-x6 is memory"),
        (["TAPE=ddr5-snc"], "TAPE is no tier; there are HBM, DRAM, PMEM and SSD"),
    ],
)
def test_a_device_for_a_tier_that_it_cannot_hold_is_refused(names: list[str], problem: str) -> None:
    with pytest.raises(PlanError, match=rf"--devices {names[0]}: {problem}"):
        named_devices(names)


def test_a_file_s_path_may_have_an_equals_sign(tmp_path: Path) -> None:
    file = tmp_path / "size=1" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(device_path("optane-100-x6").read_text())
    pool = named_devices([str(file), f"DRAM={file}"])
    assert [len(pool[role]) for role in ("DRAM", "PMEM")] == [1, 1]


def test_two_device_files_with_the_same_name_are_refused_but_one_file_may_serve_two_tiers(
    tmp_path: Path,
) -> None:
    text = device_path("optane-100-x6").read_text().replace("optane-100-x6", "here", 1)
    files = [tmp_path / folder / "here.yaml" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(text)
    with pytest.raises(PlanError, match=rf"--devices PMEM={files[1]}: .* {files[0]} .* rename one"):
        named_devices([f"DRAM={files[0]}", f"PMEM={files[1]}"])
    (tmp_path / "link").symlink_to(files[0].parent)
    pool = named_devices([f"DRAM={files[0]}", f"PMEM={tmp_path}/link/here.yaml"])
    assert [device.name for role in ("DRAM", "PMEM") for device in pool[role]] == ["here", "here"]


def test_a_disk_as_a_first_tier_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"DRAM_SSDHASH: disk .* can't be the first tier"):
        _plans(pool={"DRAM": (DISK,), "SSD": (DISK,)}, storage_types=[StorageType.DRAM_SSDHASH])
    with pytest.raises(PlanError, match="none of the storage types can be had on disk; the index"):
        _plans(pool={"SSD": (DISK,)})


@pytest.mark.parametrize(
    ("kind", "pool", "problem"),
    [
        ("DRAM", {"SSD": (DISK,)}, r"DRAM or memory mode for its DRAM tier; given: disk \(a disk"),
        ("PMEM_LIBPMEM", {"PMEM": (PMEM,)}, "DRAM or memory mode for its index; given: pmem"),
        ("DRAM_PMEM", {"DRAM": (DRAM,)}, "PMem or CXL memory for its PMEM tier; given: dram"),
        ("DRAM_LEVELDB", {"DRAM": (DRAM,)}, "a disk for its SSD tier; given: dram"),
    ],
)
def test_a_requested_storage_type_must_have_devices(
    kind: str, pool: DevicePool, problem: str
) -> None:
    with pytest.raises(PlanError, match=f"--devices: {kind} needs {problem}"):
        _plans(pool=pool, storage_types=[StorageType[kind]])


def test_storage_types_are_found_by_name() -> None:
    assert storage_type_by_name("ssdhash") is StorageType.DRAM_SSDHASH
    assert storage_type_by_name("hbm_dram") is StorageType.HBM_DRAM
    with pytest.raises(PlanError, match="--storage-types TAPE: no storage type; there are DRAM,"):
        storage_type_by_name("TAPE")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"batch_ids": 0}, "--batch-size 0: must be 1"),
        ({"lookups_per_s": 0.0}, "--lookups-per-s 0.0: must be above 0"),
        ({"lookups_per_s": math.inf}, "--lookups-per-s inf: must be above 0, and finite"),
        ({"tables": ()}, "--tables: has no table"),
    ],
)
def test_an_impossible_workload_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        replace(TABLE, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"threads": 0}, "--threads 0: must be from 1 to 1024"),
        ({"threads": 10**9}, "--threads 1000000000: must be from 1 to 1024"),
        ({"first_tier_fractions": (0.1, 1.0)}, "--first-tier-fraction 1.0: must be between"),
        ({"middle_tier_fraction": 0.0}, "--middle-tier-fraction 0.0: must be between"),
        ({"dram_bytes": 0}, "--dram-per-machine 0: must be above 0"),
        ({"usable_fraction": 1.1}, "--usable-fraction 1.1: must be from 0.01 to 1"),
        ({"usable_fraction": 1e-300}, "--usable-fraction 1e-300: must be from 0.01 to 1"),
        ({"max_machines": 0}, "--max-machines 0: must be 1"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        Settings(**changes)


def test_the_last_of_three_tiers_must_have_rows() -> None:
    with pytest.raises(PlanError, match=r"--first-tier-fraction 0.8: leaves the last of three"):
        _plans(settings=Settings(first_tier_fractions=(0.8,)))


def test_the_cpu_s_work_is_measured_for_training_and_serving() -> None:
    adagrad = es.optimizers.Adagrad(0.1)
    training = measure_cpu_work(16, adagrad, ITEMS.popularity, training=True)
    serving = measure_cpu_work(16, adagrad, ITEMS.popularity, training=False)
    assert 0.5 < serving.ns_per_lookup < training.ns_per_lookup < 10_000
    assert "measured here: look-up and Adagrad" in training.source


COMMAND = ["model", "plan", "--rows=2e8", "--dim=64", "--skew=1.05", "--lookups-per-s=5e6"]
COMMAND += ["--cpu-ns-per-lookup=60"]
DEVICES = ["--devices", "ddr4-2666-x6", "optane-100-x6", "nvme-p4510"]


def test_the_command_prints_a_table_that_fits_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    file = tmp_path / "plan.json"
    assert main([*COMMAND, *DEVICES, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "DRAM_PMEM in 1 × ecs.re6p.13xlarge" in out
    assert "CPU: 60.0 ns a look-up (given)" in out
    document = json.loads(file.read_text())
    assert document["kind"] == "modelled"
    assert document["workload"]["row_bytes"] == 512
    assert [plan["rank"] for plan in document["plans"]] == list(
        range(1, len(document["plans"]) + 1)
    )
    best = document["plans"][0]
    assert best["usd_per_month"] == min(p["usd_per_month"] or 1e9 for p in document["plans"])
    assert f"{best['storage_type']} in {best['machines']} × {best['machine']}" in out


def test_a_full_disk_keeps_the_older_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("before")
    fill_disk(monkeypatch)
    assert main([*COMMAND, *DEVICES, "--json", str(file)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert file.read_text() == "before"


def test_make_plans_gives_the_document_that_the_command_writes(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert main([*COMMAND, *DEVICES, "--json", str(file)]) == 0
    workload = Workload((planned_table("table", rows=200_000_000, dim=64, skew=1.05),), 5e6)
    prices = load_prices()
    plans = make_plans(workload, named_devices(DEVICES[1:]), prices, CPU)
    assert json.loads(json.dumps(plans_document(plans, prices))) == json.loads(file.read_text())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--rows 1.5", "--rows 1.5: must be a whole number"),
        ("--tables tables.yaml", "--rows: the file of --tables says it for each table"),
        ("--optimizer lion", "--optimizer lion: must be one of"),
        ("--devices flux", "flux: no device of this name"),
        ("--devices nvme-p4510", "the index needs DRAM or memory mode, so name such a device too"),
        ("--machines tiny", "there is no tiny"),
        ("--dram-per-machine lots", "--dram-per-machine: 'lots' is no size"),
        ("--cpu-ns-per-lookup 0", "--cpu-ns-per-lookup 0.0: must be above 0"),
        ("--cpu-ns-per-lookup inf", "--cpu-ns-per-lookup inf: must be above 0, and finite"),
        ("--top 0", "--top 0: must be 1 or more"),
        ("--prices /none.yaml", "/none.yaml: can't be read"),
        ("--json /tmp", "--json /tmp: is a folder; give a file"),
        ("--json /none/plan.json", "--json /none/plan.json: there is no folder /none"),
    ],
)
def test_the_command_s_errors_name_the_argument(
    arguments: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *DEVICES, *arguments.split()]) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_the_plan_command_parses_its_options_without_the_engine() -> None:
    """Without the engine and NumPy, options are parsed, and only the planning itself is refused."""
    program = (
        "import sys; sys.modules['numpy'] = sys.modules['embstore'] = None\n"
        "from pmemlab.cli import main\n"
        f"sys.exit(main({COMMAND!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pmemlab: plan: the engine" in done.stderr
    assert "make setup" in done.stderr
