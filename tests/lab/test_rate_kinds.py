"""A rate is `measured` only if every tier was on the kind of medium that its name says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from recorded_facts import recorded_facts

from pmemlab.machines.protocol import Accelerator, Kind, Result
from pmemlab.scenarios.document import Expectations, PowerCuts, RowPlacement, Scenario
from pmemlab.scenarios.metrics import SAMPLES_PER_S, MetricKind
from pmemlab.scenarios.run_metrics import run_metrics
from pmemlab.scenarios.runner import Outcome
from pmemlab.topology import load_topology

IN_DRAM = {"name": "DRAM", "rows": 9, "nodes": {"0": 9}, "devices": {}, "file": None}
ON_DISK = {
    **{"name": "SSDHASH", "rows": 9, "nodes": {}, "file": "/mnt/nvme0/rows"},
    **{"devices": {"259:0": 4096}, "is_direct": True},
}
ON_DAX = {"name": "PMEM_LIBPMEM", "rows": 9, "nodes": {}, "file": "/mnt/pmem0/rows"}
ON_NODE = {"name": "PMEM_MEMKIND", "rows": 9, "nodes": {"1": 9}, "devices": {}, "file": None}
PLACED = Expectations(rows=RowPlacement(nodes=(0,)))
HARDWARE: Mapping[str, Any] = {"unproved": [], "virtual_machine": None}


def kind_of(
    storage_type: str,
    *tiers: Mapping[str, Any],
    machine: Kind,
    facts: Mapping[str, Any],
    accelerator: Accelerator = "none",
    topology: str = "dram",
    power_cuts: PowerCuts | None = None,
    expect: Expectations = PLACED,
    **run: Any,
) -> MetricKind:
    """Returns the kind of a run's rate, with rows in these tiers."""
    scenario = Scenario(
        path=Path("a.yaml"),
        name="a",
        summary="a",
        topology=load_topology(topology),
        storage_types=(storage_type,),
        expect=expect,
        power_cuts=power_cuts,
    )
    outcome = Outcome(Result(0, "", ""), scenario.topology, machine, accelerator, facts, facts)
    stats = {"hits": 0, "misses": 0, "tiers": []}
    document = {
        **{SAMPLES_PER_S: 9.0, "auc": None, "loss": 0.5},
        "tables": [{"name": "table", "stats": stats, "tiers": list(tiers)}],
        **run,
    }
    metrics = run_metrics(scenario, storage_type, outcome, document, "commit")
    return next(metric.kind for metric in metrics if metric.name == SAMPLES_PER_S)


def on_host(name: str, *tiers: Mapping[str, Any], **changed: Any) -> MetricKind:
    """Returns the kind of a rate on a host whose hardware has the facts of a lab machine."""
    facts = {**recorded_facts(name), **HARDWARE, **changed}
    storage_type = {
        ("PMEM_LIBPMEM",): "PMEM_LIBPMEM",
        ("PMEM_MEMKIND",): "PMEM_MEMKIND",
        ("DRAM",): "DRAM",
        ("DRAM", "SSDHASH"): "DRAM_SSDHASH",
        ("DRAM", "LEVELDB"): "DRAM_LEVELDB",
        ("DRAM", "PMEM_LIBPMEM"): "DRAM_PMEM",
    }[tuple(tier["name"] for tier in tiers)]
    return kind_of(storage_type, *tiers, machine="host", facts=facts, topology=name)


def on_its_device(tier: Mapping[str, Any], name: str, mount: str) -> dict[str, Any]:
    """Returns the tier with its file on the device of a lab machine's mount."""
    return {**tier, "devices": {recorded_facts(name)[mount]["device_number"]: 4096}}


def test_dram_is_measured_on_this_computer_and_under_kvm_and_not_under_tcg() -> None:
    assert kind_of("DRAM", IN_DRAM, machine="process", facts={}) == "measured"
    assert kind_of("DRAM", IN_DRAM, machine="host", facts=HARDWARE) == "measured"
    guest: Any = {"machine": "guest", "facts": {}}
    assert kind_of("DRAM", IN_DRAM, **guest, accelerator="kvm") == "measured"
    assert kind_of("DRAM", IN_DRAM, **guest, accelerator="tcg") == "functional-only"
    cached = {"memory_side_caches": [{"node": 0}]}
    guest["facts"] = cached
    assert kind_of("DRAM", IN_DRAM, **guest, accelerator="kvm") == "functional-only"


def test_an_unproved_run_measures_nothing() -> None:
    unproved = {"unproved": ["memory_side_caches"]}
    for machine in ("process", "host"):
        assert kind_of("DRAM", IN_DRAM, machine=machine, facts=unproved) == "functional-only"


def test_without_a_check_of_where_rows_lie_nothing_is_measured() -> None:
    anywhere: Any = {"machine": "host", "facts": HARDWARE, "expect": Expectations()}
    assert kind_of("DRAM", IN_DRAM, **anywhere) == "functional-only"


@pytest.mark.parametrize("machine", ["process", "host"])
def test_a_run_that_saves_in_the_timed_steps_measures_no_training(machine: Kind) -> None:
    saved = kind_of("DRAM", IN_DRAM, machine=machine, facts=HARDWARE, saves=1)
    assert saved == "functional-only"
    assert kind_of("DRAM", IN_DRAM, machine=machine, facts=HARDWARE, saves=0) == "measured"


def test_saves_to_an_emulated_disk_are_not_measured_even_under_kvm() -> None:
    nvme: Any = {"topology": "nvme", "facts": recorded_facts("nvme")}
    kvm: Any = {"machine": "guest", "accelerator": "kvm"}
    assert kind_of("DRAM", IN_DRAM, **kvm, **nvme, saves=3) == "functional-only"
    # This workload doesn't count its saves, but power cuts imply that it saves.
    cuts = PowerCuts(1, "ssd", after_line="kept")
    assert kind_of("DRAM", IN_DRAM, **kvm, **nvme, power_cuts=cuts) == "functional-only"
    assert kind_of("DRAM", IN_DRAM, **kvm, **nvme) == "measured"


@pytest.mark.parametrize("disk", ["SSDHASH", "LEVELDB"])
def test_a_process_machine_never_measures_a_disk(disk: str) -> None:
    tier = {**on_its_device(ON_DISK, "nvme", "ssd"), "name": disk}
    for facts in ({}, {"ssd": {"device": "tmpfs"}}, {**recorded_facts("nvme"), **HARDWARE}):
        kind = kind_of(f"DRAM_{disk}", IN_DRAM, tier, machine="process", facts=facts)
        assert kind == "functional-only"


def test_a_host_measures_persistent_memory_and_cxl_memory_of_real_hardware() -> None:
    mounts = ["cxl-pmem", "fsdax", "fsdax-eadr", "fsdax-nvme", "interleaved", "mixed-mode"]
    for name in [*mounts, "fsdax-memmap"]:
        on_dax = on_its_device(ON_DAX, name, "mount")
        # memmap= memory has all facts of an NVDIMM, but is plain RAM.
        expected = "functional-only" if name == "fsdax-memmap" else "measured"
        assert on_host(name, on_dax) == expected, name
        assert kind_of(
            "PMEM_LIBPMEM", on_dax, machine="process", facts=HARDWARE, topology=name
        ) == ("functional-only")
    for name in ["cxl-ram", "kmem-dax", "numa-cpuless", "numa-fake"]:
        expected = "functional-only" if name.startswith("numa") else "measured"
        assert on_host(name, ON_NODE) == expected, name


def test_a_host_measures_nothing_on_a_mount_that_is_not_persistent_memory() -> None:
    on_dax = on_its_device(ON_DAX, "fsdax", "mount")
    facts = recorded_facts("fsdax")
    assert on_host("fsdax", on_dax) == "measured"
    not_persistent: list[dict[str, Any]] = [
        {"mount": {**facts["mount"], "map_sync": False}},
        {"mount": {**facts["mount"], "page_regions": ["none"]}},
        {"mount": {**facts["mount"], "page_regions": ["none", "region0"]}},
        {"libpmem": {"is_pmem": 0}},
        {"regions": []},
        {"virtual_machine": "its CPU says hypervisor"},
    ]
    for broken in not_persistent:
        assert on_host("fsdax", on_dax, **broken) == "functional-only", broken


def test_rows_outside_the_proved_medium_measure_nothing() -> None:
    for elsewhere in ({"0:25": 4096}, {"259:0": 4096, "0:25": 4096}, {}):
        assert on_host("fsdax", {**ON_DAX, "devices": elsewhere}) == "functional-only"
        disk = {**ON_DISK, "devices": elsewhere}
        assert on_host("nvme", IN_DRAM, disk) == "functional-only"
    for nodes in ({"0": 9}, {"0": 1, "1": 9}, {}):
        assert on_host("kmem-dax", {**ON_NODE, "nodes": nodes}) == "functional-only"
    assert on_host("kmem-dax", IN_DRAM) == "measured"
    assert on_host("kmem-dax", {**IN_DRAM, "nodes": {"0": 9, "1": 1}}) == "functional-only"


def test_a_tier_without_rows_measures_nothing() -> None:
    on_dax = on_its_device(ON_DAX, "fsdax", "mount")
    assert on_host("fsdax", IN_DRAM, on_dax) == "measured"
    assert on_host("fsdax", IN_DRAM, {**on_dax, "rows": 0}) == "functional-only"


def test_a_host_measures_a_disk_only_without_the_page_cache() -> None:
    for name in ("nvme", "sata"):
        disk = on_its_device(ON_DISK, name, "ssd")
        assert on_host(name, IN_DRAM, disk) == "measured"
        assert on_host(name, IN_DRAM, {**disk, "is_direct": False}) == "functional-only"
        cached = {**disk, "name": "LEVELDB", "is_direct": False}
        assert on_host(name, IN_DRAM, cached) == "functional-only"
        ssd = recorded_facts(name)["ssd"]
        for broken in ({"rotates": True}, {"transport": "virtio"}):
            assert on_host(name, IN_DRAM, disk, ssd={**ssd, **broken}) == "functional-only"
        assert on_host(name, IN_DRAM, disk, virtual_machine="QEMU") == "functional-only"


def test_a_host_s_memory_mode_is_measured_if_the_topology_names_it() -> None:
    facts = {**recorded_facts("memory-mode"), **HARDWARE}
    here: Any = {"machine": "host", "facts": facts}
    assert kind_of("DRAM", IN_DRAM, **here, topology="memory-mode") == "measured"
    assert kind_of("DRAM", IN_DRAM, **here, topology="dram") == "functional-only"


@pytest.mark.parametrize("gpu", ["emulated", None])
def test_no_rate_of_hbm_is_measured(gpu: str | None) -> None:
    tier = {"name": "HBM", "rows": 9, "nodes": {}, "devices": {}, "file": None, "gpu": gpu}
    for machine in ("process", "host", "guest"):
        kind = kind_of("HBM", tier, machine=machine, facts=HARDWARE)
        assert kind == "functional-only"
