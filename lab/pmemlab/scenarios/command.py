"""The commands that run a scenario's workload in a machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.scenarios.document import Scenario
from pmemlab.topology import Topology
from pmemlab.workloads import tables, wdl
from pmemlab.workloads.command_line import NO_PATH
from pmemlab.workloads.placements import AS_HERE

__all__ = [
    "PMEM_KINDS",
    "SSD_KINDS",
    "WORKLOADS",
    "cut_command",
    "saving_command",
    "storage_command",
    "workload_command",
]

PMEM_KINDS: Final = (TierKind.PMEM, TierKind.PMEM_LIBPMEM, TierKind.PMEM_MEMKIND)
SSD_KINDS: Final = (TierKind.SSDHASH, TierKind.LEVELDB)
WORKLOADS: Final[Mapping[str, ModuleType]] = {"tables": tables, "wdl": wdl}

# Bytes of persistent memory per byte of a tier's size, at most: a row (the workloads' shortest has
# 48 bytes) may need up to 48 more, and the tier has room for an eighth more rows.
_MEMORY_OF_A_TIER = 3


def workload_command(
    scenario: Scenario,
    storage_type: str,
    python: str,
    topology: Topology,
    restored_folder: str | None = None,
    kept_folder: str | None = None,
) -> list[str]:
    """Returns the command.

    python, topology: the machine's; a process has its persistent memory elsewhere than the
    scenario's topology says. restored_folder: a folder in the machine with a save to go on from.
    kept_folder: a folder in the machine with the checkpoints that a cut run has kept.
    """
    argv = storage_command(scenario, storage_type, python, topology)
    argv += ["--reference", scenario.reference_storage_type, *_predicted_on(scenario, storage_type)]
    if restored_folder is not None:
        argv += ["--restore", restored_folder]
    if kept_folder is not None:
        argv += ["--kept-in", kept_folder]
    return argv + scenario.workload.argv()


def cut_command(
    scenario: Scenario, storage_type: str, python: str, topology: Topology, kept_folder: str
) -> list[str]:
    """Returns the command of a run that will be cut: as `workload_command`, but without the
    comparison with the reference, which the cut prevents.
    """
    argv = storage_command(scenario, storage_type, python, topology)
    return [*argv, "--kept-in", kept_folder, *scenario.workload.argv()]


def saving_command(scenario: Scenario, python: str, topology: Topology, folder: str) -> list[str]:
    """Returns the command that saves, in a folder in the machine, the state that the scenario goes
    on from.

    REQUIRES: the scenario has `saved_on`.
    """
    saved_on = scenario.saved_on
    assert saved_on is not None
    argv = storage_command(scenario, saved_on.storage_type, python, topology)
    argv += ["--save", folder, "--stop-after", str(saved_on.batches)]
    return argv + scenario.workload.argv()


def storage_command(
    scenario: Scenario, storage_type: str, python: str, topology: Topology
) -> list[str]:
    """Returns the command with the engine's arguments, without the workload's."""
    workload = scenario.workload
    argv = [python, "-m", f"pmemlab.workloads.{workload.name}", "--json"]
    argv += ["--storage-type", storage_type]
    kinds = TIER_KINDS[StorageType[storage_type]]
    paths = [_path(scenario, kind, topology) for kind in kinds]
    if any(paths):
        argv += ["--storage-path", *(path or NO_PATH for path in paths)]
    sizes = list(scenario.storage.size_bytes[: len(kinds)])
    tables: int = WORKLOADS[workload.name].table_count(workload.arguments)
    for kind in kinds[len(sizes) :]:
        if kind not in PMEM_KINDS or not topology.pmem.size_bytes:
            break  # the engine's own size, for the later tiers too
        sizes.append(topology.pmem.size_bytes // tables // _MEMORY_OF_A_TIER)
    if sizes:
        argv += ["--storage-size", *map(str, sizes)]
    return [*argv, "--direct-io"] if scenario.direct_io and TierKind.SSDHASH in kinds else argv


def _predicted_on(scenario: Scenario, storage_type: str) -> list[str]:
    if not scenario.predict_on:
        return []
    argv = ["--predict", *(",".join(names) for names in scenario.predict_on)]
    kinds = TIER_KINDS[StorageType[storage_type]]
    on_device = {
        kind
        for names in scenario.predict_on
        for kind, name in zip(kinds, names, strict=True)
        if name != AS_HERE
    }
    if scenario.memory_here is not None:
        memory = str(scenario.memory_here)
        argv += ["--here", ",".join(AS_HERE if kind in SSD_KINDS else memory for kind in kinds)]
    # Reads from the page cache would cost the disk nothing.
    return [*argv, "--direct-io"] if TierKind.SSDHASH in on_device else argv


def _path(scenario: Scenario, kind: TierKind, topology: Topology) -> str | None:
    """Returns a tier's folder on a machine of `topology`; None if the tier has no files."""
    path = scenario.storage.path
    if kind in SSD_KINDS:
        return path or (topology.ssd.path if topology.ssd else None)
    if kind is TierKind.PMEM_LIBPMEM:
        return path or topology.pmem.path
    return topology.pmem.path if kind is TierKind.PMEM else None  # memkind if there is no path
