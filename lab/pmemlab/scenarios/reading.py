"""Reads scenarios' files. `scenarios/README.md` documents the fields for their authors."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.errors import LabError
from pmemlab.scenarios.command import SSD_KINDS, WORKLOADS
from pmemlab.scenarios.document import (
    PMEM,
    SSD,
    RowPlacement,
    Scenario,
    ScenarioError,
    Storage,
    Workload,
)
from pmemlab.scenarios.program import check_program
from pmemlab.schema import YAML_SUFFIXES, FieldError, File
from pmemlab.topology import GPU_VARIABLE, Topology
from pmemlab.workloads.placements import load_placement
from pmemlab.workloads.witness import EMULATED_GPU

__all__ = ["is_scenario", "load_scenario"]

_RUNNERS_OPTIONS = (
    *("--storage-type", "--storage-path", "--storage-size", "--reference", "--json"),
    *("--save", "--restore", "--stop-after", "--kept-in", "--predict", "--direct-io"),
    "--here",
)
# Fields that a scenario does not take over through `like`.
_ITS_OWN = ("summary", "markers")


def is_scenario(path: Path) -> bool:
    """Returns False for a topology or a device, which lies beside the scenarios that name it.

    These two have a field `name`, and no field that a scenario must have. Raises `ScenarioError`.
    """
    content = File.from_yaml(path, ScenarioError).content
    required = {"topology", "storage_types", "expect"}
    return not isinstance(content, dict) or "name" not in content or bool(required & content.keys())


def load_scenario(path: Path) -> Scenario:
    """Loads a file. Raises `ScenarioError`, which names the file, the line and the field."""
    file = _merged_with_like(File.from_yaml(path, ScenarioError))
    scenario = file.read(Scenario, {"name": path.stem, "memory_here": None, "direct_io": False})
    try:
        _check(scenario, file)
    except FieldError as error:
        raise file.error(error.field, str(error)) from None
    return scenario


def _merged_with_like(file: File) -> File:
    """Returns the file, plus the fields that it lacks from the scenario that its `like` names."""
    name = file.content.get("like") if isinstance(file.content, dict) else None
    if name is None:
        return file
    folder = file.path.parent
    scenario_paths = {
        path.stem: path for path in sorted(folder.glob("*")) if path.suffix in YAML_SUFFIXES
    }
    if not isinstance(name, str) or scenario_paths.get(name, file.path) == file.path:
        raise file.error("like", f"there is no other scenario {name!r} in {folder}")
    base = File.from_yaml(scenario_paths[name], ScenarioError).content
    if not isinstance(base, dict) or "like" in base:
        raise file.error("like", f"{name} is like another one itself; name that one")
    return file.filled_from({key: value for key, value in base.items() if key not in _ITS_OWN})


def _check(scenario: Scenario, file: File) -> None:
    topology, workload, types = scenario.topology, scenario.workload, scenario.storage_types
    for storage_type in types:
        _check_storage_type("storage_types", storage_type)
    if len(set(types)) != len(types):
        raise FieldError(f"names one twice: {', '.join(types)}", "storage_types")
    _check_media("storage_types", types, scenario.storage, topology)
    _check_expectations(scenario, topology, types)
    try:
        if workload.command:
            if "name" in file.content["workload"]:
                raise FieldError("is for the lab's own workloads, not for a command", "name")
            compared = bool(scenario.expect.identical_to)
            check_program(workload, topology, scenario.path.parent, compared)
        else:
            _check_workload(workload)
    except FieldError as error:
        raise FieldError(str(error), f"workload.{error.field}") from None
    if workload.command:
        _check_only_run(scenario)
    if scenario.saved_on and scenario.power_cuts:
        raise FieldError("and saved_on: are for scenarios of their own", "power_cuts")
    if scenario.saved_on:
        if workload.name != "tables":
            raise FieldError(f"only workload tables can be saved, not {workload.name}", "saved_on")
        saved_as = scenario.saved_on.storage_type
        _check_storage_type("saved_on.storage_type", saved_as)
        machine = scenario.saved_on.topology
        _check_media("saved_on.storage_type", [saved_as], Storage(), machine)
    if scenario.power_cuts:
        _check_power_cuts(scenario.power_cuts.kept_on, scenario)
    for number, names in enumerate(scenario.predict_on):
        for storage_type in types:
            try:
                load_placement("devices", ",".join(names), storage_type, True, rates_only=False)
            except LabError as error:
                raise FieldError(str(error), f"predict_on[{number}]") from error


def _check_storage_type(field: str, value: str) -> None:
    if value not in StorageType.__members__:
        names = ", ".join(StorageType.__members__)
        raise FieldError(f"{value!r} is no storage type; there are {names}", field)


def _check_media(
    field: str, storage_types: Collection[str], storage: Storage, topology: Topology
) -> None:
    """Raises `FieldError` if storage types need a GPU or a disk that the topology lacks."""
    for name in storage_types:
        if TierKind.HBM in TIER_KINDS[StorageType[name]] and topology.gpu is None:
            raise FieldError(
                f"{name} needs a GPU, but topology {topology.name} names none; take one that does, "
                f"or add {GPU_VARIABLE}: {EMULATED_GPU} to its environment",
                field,
            )
        needs_a_disk = any(kind in SSD_KINDS for kind in TIER_KINDS[StorageType[name]])
        if needs_a_disk and storage.path is None and topology.ssd is None:
            raise FieldError(
                f"{name} needs a disk, but topology {topology.name} has no ssd; "
                "take one that has, or give storage.path",
                field,
            )


def _check_only_run(scenario: Scenario) -> None:
    """Raises `FieldError` for fields that only the lab's own workloads can have."""
    lacking = Scenario("", "", "", scenario.topology, (), scenario.expect)  # type: ignore[arg-type]
    for name in ("storage", "saved_on", "power_cuts", "predict_on"):
        if getattr(scenario, name) != getattr(lacking, name):
            raise FieldError("is for the lab's own workloads, not for workload.command", name)


def _check_expectations(
    scenario: Scenario, topology: Topology, storage_types: Collection[str]
) -> None:
    """Raises `FieldError` unless `rows` or `tiers` fits the storage types and the topology."""
    expect = scenario.expect
    if scenario.reference_storage_type:
        _check_storage_type("expect.identical_to", scenario.reference_storage_type)
    if scenario.workload.command and expect.rows is None and not expect.tiers:
        return
    for name in storage_types:
        count = len(TIER_KINDS[StorageType[name]])
        if not expect.tiers and count > 1:
            raise FieldError(
                f"is missing; {name} has {count} tiers, say it of each", "expect.tiers"
            )
        if expect.tiers and count == 1:
            raise FieldError(f"{name} has one tier; say rows: in its place", "expect.tiers")
        if expect.tiers and count != len(expect.tiers):
            raise FieldError(
                f"has {len(expect.tiers)} entries; {name} has {count} tiers", "expect.tiers"
            )
    if expect.tiers and expect.rows is not None:
        raise FieldError("and tiers: say the one that fits the storage types", "expect.rows")
    for number, placement in enumerate(expect.tiers):
        _check_placement(f"expect.tiers[{number}]", placement, topology)
    if not expect.tiers:
        if expect.rows is None:
            raise FieldError("is missing", "expect.rows")
        _check_placement("expect.rows", expect.rows, topology)


def _check_placement(field: str, placement: RowPlacement, topology: Topology) -> None:
    if placement.nodes == PMEM and not topology.pmem.nodes:
        raise FieldError(
            f"topology {topology.name} has no persistent-memory node", f"{field}.nodes"
        )
    if placement.file_under == PMEM and topology.pmem.path is None:
        raise FieldError(f"topology {topology.name} has no pmem.path", f"{field}.file_under")
    if placement.gpu is not None and placement.gpu != topology.gpu:
        raise FieldError(
            f"topology {topology.name} has no such GPU ({GPU_VARIABLE} of its environment)",
            f"{field}.gpu",
        )
    if placement.file_under == SSD and topology.ssd is None:
        raise FieldError(f"topology {topology.name} has no ssd", f"{field}.file_under")


def _check_power_cuts(medium: str, scenario: Scenario) -> None:
    topology, name = scenario.topology, scenario.workload.name
    for storage_type in scenario.storage_types:
        if refusal := WORKLOADS[name].checkpoint_refusal(storage_type):
            raise FieldError(f"workload {name} keeps no checkpoints of it: {refusal}", "power_cuts")
    path = topology.pmem.path if medium == PMEM else topology.ssd and topology.ssd.path
    if path is None:
        raise FieldError(f"topology {topology.name} has no {medium}.path", "power_cuts.kept_on")
    if not topology.keeps_media:
        raise FieldError(
            f"nothing of topology {topology.name} outlives a power cut: it is all RAM",
            "power_cuts.kept_on",
        )


def _check_workload(workload: Workload) -> None:
    if workload.files:
        raise FieldError("is for workload.command", "files")
    if workload.name not in WORKLOADS:
        known_names = ", ".join(WORKLOADS)
        raise FieldError(f"{workload.name!r} is no workload; there are {known_names}", "name")
    _check_arguments("arguments", workload.name, workload.arguments)
    if workload.rated is not None:
        arguments = {**workload.arguments, **workload.rated.arguments}
        _check_arguments("rated.arguments", workload.name, arguments)


def _check_arguments(field: str, name: str, arguments: Mapping[str, Any]) -> None:
    for option in arguments:
        if f"--{option}" in _RUNNERS_OPTIONS:
            raise FieldError("is set by the runner; see storage, expect", f"{field}.{option}")
    if "help" in arguments:
        raise FieldError(
            "shows the workload's options and trains nothing; leave it out", f"{field}.help"
        )
    argv = Workload(name, arguments).argv()
    # Lets the workload's parser judge here rather than minutes later in a machine.
    try:
        _, unknown = WORKLOADS[name].argument_parser().parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise FieldError(str(error), field) from error
    if unknown:
        raise FieldError(f"{name} does not take {shlex.join(unknown)}", field)
