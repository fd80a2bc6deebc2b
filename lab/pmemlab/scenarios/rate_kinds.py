"""Decides whether the rates of a run are `measured`; no other module does.

A rate is `measured` only if every tier was on the kind of medium that its name says:

| tier | process | host | guest or container on KVM | on TCG |
|---|---|---|---|---|
| HBM | no: emulated | no: emulated, or the lab can't look into it | no: emulated | no |
| DRAM | yes | yes | yes, without a memory-side cache | no |
| PMem or CXL memory, a mount | no: DRAM | yes, in a region of NFIT's or CXL's | no: emulated | no |
| PMem or CXL memory, a node | no: DRAM | yes, if slow and without CPUs | no: emulated | no |
| SSDHASH | no: any disk | yes, past the page cache of an SSD | no: emulated | no |
| LEVELDB | no: any disk | no: through the page cache | no: emulated | no |

No rate is `measured` if the machine could not prove all that its topology demands, or if the timed
steps saved checkpoints. On a computer that is a virtual machine itself, PMem, CXL memory and disks
may be emulated below it, so that their rates are not `measured`.

A process other than the engine's (`pmemlab.workloads.witness`) sees where rows lay and whether
their files were open past the page cache. The machine's facts say what the media are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.scenarios.command import PMEM_KINDS, SSD_KINDS
from pmemlab.scenarios.document import PLACES, Scenario
from pmemlab.scenarios.runner import Outcome
from pmemlab.workloads.witness import EMULATED_GPU

__all__ = ["why_not_measured"]

_OF_HARDWARE: Final = ("ACPI.NFIT", "CXL")
"""Providers of regions on hardware. Others are plain memory: e820 is from memmap=."""
_DISKS: Final = ("nvme", "sata", "sas", "ata")
"""Transports of disks that are real devices; a virtio disk is a file elsewhere."""
_NAMES: Final[Mapping[TierKind, tuple[str, ...]]] = {
    TierKind.PMEM: tuple(kind.value for kind in (*PMEM_KINDS, TierKind.PMEM_POOL))
}
"""The engine's names for a tier of a kind, if they differ from the kind's name."""


def why_not_measured(
    scenario: Scenario, storage_type: str, outcome: Outcome, run: Mapping[str, Any]
) -> list[str]:
    """Returns the reasons, for people, why the rates of a run are not `measured`; none if they are.

    run: the workload's report, with the findings of another process on its tables' tiers.
    """
    kinds = TIER_KINDS[StorageType[storage_type]]
    reasons = [*_run_reasons(scenario, outcome, run)]
    for kind in kinds:
        names = _NAMES.get(kind, (kind.value,))
        tiers = [
            tier
            for table in run["tables"]
            for tier in table["tiers"]
            if tier["name"] in names and tier["rows"]
        ]
        of_tier = [*_tier_reasons(kind, scenario, outcome, tiers)]
        if of_tier:
            reasons.append(f"of tier {kind.value}, {', '.join(of_tier)}")
    return reasons


def _run_reasons(scenario: Scenario, outcome: Outcome, run: Mapping[str, Any]) -> Iterator[str]:
    unproved = outcome.facts.get("unproved")
    if isinstance(unproved, list) and unproved:
        yield f"the machine could not prove {', '.join(unproved)}"
    # A run with power cuts saves checkpoints, whether it counts its saves or not.
    if run.get("saves") or scenario.power_cuts is not None:
        yield "the timed steps saved checkpoints"
    if PLACES in scenario.not_judged:
        yield "nobody looked where the rows lie"
    if outcome.accelerator == "tcg":
        yield "the processor is emulated"


def _tier_reasons(
    kind: TierKind, scenario: Scenario, outcome: Outcome, tiers: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yields reasons of a tier. tiers: those of this kind that have rows, of all tables."""
    facts = outcome.facts
    if kind is TierKind.DRAM:
        yield from _dram_reasons(scenario, outcome, tiers)
        return
    if kind is TierKind.HBM:
        is_emulated = all(tier.get("gpu") == EMULATED_GPU for tier in tiers)
        yield "the GPU is emulated" if is_emulated else "the lab can't look into the GPU"
        return
    if kind not in PMEM_KINDS and kind not in SSD_KINDS:
        yield "the lab can't tell what it is on"
        return
    if outcome.machine == "process":
        stand_in = "DRAM" if kind in PMEM_KINDS else "whatever disk temporary files are on"
        yield f"the process machine has {stand_in} in its place, where the host machine has it"
        return
    if outcome.machine != "host":
        yield "the medium is emulated"
        return
    if facts.get("virtual_machine") is not None:
        yield (
            f"the medium may be emulated: this computer is a virtual machine "
            f"({facts['virtual_machine']})"
        )
    if not tiers:
        yield "it has no rows"
    elif kind in SSD_KINDS:
        yield from _disk_reasons(facts, tiers)
    elif any(tier["file"] for tier in tiers):
        yield from _mount_reasons(facts, tiers)
    else:
        yield from _node_reasons(outcome, tiers)


def _dram_reasons(
    scenario: Scenario, outcome: Outcome, tiers: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    facts = outcome.facts
    is_host = outcome.machine == "host"
    named_nodes = outcome.topology.pmem.nodes if is_host else ()
    slow = _nodes_of(tiers) & {*_list(facts, "slow_nodes"), *named_nodes}
    if slow:
        yield f"rows lie on node {', '.join(map(str, sorted(slow)))}, which is no DRAM"
    # On hardware a topology may demand memory mode, which is then the measured mode.
    named = is_host and any(
        name.startswith("memory_side_caches") and value
        for name, value in scenario.topology.proof.items()
    )
    if facts.get("memory_side_caches") and not named:
        yield "a memory-side cache is before it"


def _mount_reasons(facts: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    mount, libpmem = _mapping(facts, "mount"), _mapping(facts, "libpmem")
    if mount.get("map_sync") is not True or libpmem.get("is_pmem") != 1:
        yield "its folder is not on persistent memory (mount.map_sync, libpmem.is_pmem)"
    providers = {region["name"]: region["provider"] for region in _list(facts, "regions")}
    lies_in = _list(mount, "page_regions")
    if not lies_in or any(providers.get(name) not in _OF_HARDWARE for name in lies_in):
        yield f"its pages lie in no region that is told of by {' or '.join(_OF_HARDWARE)}"
    yield from _device_reasons(mount, tiers)


def _node_reasons(outcome: Outcome, tiers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    named, found = set(outcome.topology.pmem.nodes), _nodes_of(tiers)
    if not found or not found <= named:
        yield f"rows lie on nodes {sorted(found)}, and pmem.nodes names {sorted(named)}"
    fast = found - {*_list(outcome.facts, "slow_nodes")}
    with_cpus = found - {*_list(outcome.facts, "nodes_without_cpus")}
    if fast or with_cpus:
        yield f"nodes {sorted(fast | with_cpus)} have CPUs, or are in the memory tier of DRAM"


def _disk_reasons(facts: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ssd = _mapping(facts, "ssd")
    if ssd.get("transport") not in _DISKS:
        yield f"the disk's transport is {ssd.get('transport', 'not known')}"
    if ssd.get("rotates") is not False:
        yield "the disk rotates, or the kernel can't tell"
    if not all(tier.get("is_direct") is True for tier in tiers):
        yield "its files are read through the page cache"
    yield from _device_reasons(ssd, tiers)


def _device_reasons(mount: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found = {device for tier in tiers for device in tier["devices"]}
    if found != {mount.get("device_number")}:
        devices_found = ", ".join(sorted(found)) or "none"
        yield f"its files are on device {devices_found}, and the topology's folder on another"


def _nodes_of(tiers: Sequence[Mapping[str, Any]]) -> set[int]:
    return {int(node) for tier in tiers for node in tier["nodes"]}


def _list(facts: Mapping[str, Any], name: str) -> list[Any]:
    """Returns a fact that is a list; empty if it could not be read."""
    return list(facts.get(name) or [])


def _mapping(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return facts.get(name) or {}
