"""Reads scenarios' files. `scenarios/README.md` documents the fields for those who write them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.errors import LabError, TopologyError
from pmemlab.scenarios.command import SSD_KINDS, WORKLOADS, takes_option
from pmemlab.scenarios.document import (
    PMEM,
    SSD,
    Expectations,
    PowerCuts,
    RowPlacement,
    SavedOn,
    Scenario,
    ScenarioError,
    Storage,
    Workload,
)
from pmemlab.topology import Topology, load_topology
from pmemlab.workloads.placements import load_placement
from pmemlab.yaml_fields import Fields, is_number, parse_size

__all__ = ["load_scenario"]

_RUNNERS_OPTIONS = (
    *("--storage-type", "--storage-path", "--storage-size", "--reference", "--json"),
    *("--save", "--restore", "--stop-after", "--kept-in", "--predict", "--direct-io"),
    "--here",
)


def load_scenario(path: Path) -> Scenario:
    """Load one file. Raises `ScenarioError`, naming the file and the field."""
    top = Fields.of_file(path, ScenarioError)
    topology = _topology(top)
    workload = _workload(top)
    storage_types = _storage_types(top)
    storage = _storage(top.section("storage"))
    _check_disk(top, storage_types, storage, topology)
    scenario = Scenario(
        path=path,
        name=path.stem,
        summary=top.text("summary"),
        topology=topology,
        storage_types=storage_types,
        expect=_expectations(top.section("expect", required=True), topology, storage_types),
        storage=storage,
        workload=workload,
        saved_on=_saved_on(top, workload),
        power_cuts=_power_cuts(top, workload, topology, storage_types),
        predict_on=_predict_on(top, workload, storage_types),
        timeout_s=top.number("timeout_s", Scenario.timeout_s),
    )
    if scenario.saved_on and scenario.power_cuts:
        raise top.error("power_cuts", "and saved_on: are for scenarios of their own")
    top.finish()
    return scenario


def _topology(top: Fields) -> Topology:
    name = top.text("topology")
    # A path is relative to the file that names it.
    where = top.path.parent / name if name.endswith((".yaml", ".yml")) else name
    try:
        return load_topology(where)
    except TopologyError as error:
        raise top.error("topology", str(error)) from error


def _storage_types(top: Fields) -> tuple[str, ...]:
    value = top.take("storage_types")
    if value is None:
        raise top.error("storage_types", "is missing")
    if not isinstance(value, list) or not value:
        raise top.error("storage_types", f"must be a list of storage types, not {value!r}")
    for storage_type in value:
        _check_storage_type(top, "storage_types", storage_type)
    if len(set(value)) != len(value):
        raise top.error("storage_types", f"names one twice: {', '.join(value)}")
    return tuple(value)


def _check_storage_type(fields: Fields, name: str, value: object) -> None:
    if value not in StorageType.__members__:
        names = ", ".join(StorageType.__members__)
        raise fields.error(name, f"{value!r} is no storage type; there are {names}")


def _check_disk(
    top: Fields, storage_types: tuple[str, ...], storage: Storage, topology: Topology
) -> None:
    for name in storage_types:
        if storage.path is None and topology.ssd is None and _tiers_of(name, SSD_KINDS):
            raise top.error(
                "storage_types",
                f"{name} needs a disk, but topology {topology.name} has no ssd; "
                "take one that has, or give storage.path",
            )


def _tiers_of(storage_type: str, kinds: Sequence[TierKind]) -> int:
    return sum(kind in kinds for kind in TIER_KINDS[StorageType[storage_type]])


def _expectations(
    fields: Fields, topology: Topology, storage_types: tuple[str, ...]
) -> Expectations:
    rows, tiers = _placements(fields, topology, storage_types)
    identical_to = fields.text("identical_to", Expectations.identical_to)
    _check_storage_type(fields, "identical_to", identical_to)
    auc_above = fields.take("auc_above")
    if auc_above is not None and not (is_number(auc_above) and 0 <= auc_above < 1):
        raise fields.error("auc_above", f"must be a number in [0, 1), not {auc_above!r}")
    fields.finish()
    return Expectations(rows, identical_to, auc_above, tiers)


def _placements(
    fields: Fields, topology: Topology, storage_types: tuple[str, ...]
) -> tuple[RowPlacement | None, tuple[RowPlacement, ...]]:
    """`rows` or `tiers`, whichever fits the storage types."""
    tiers = fields.take("tiers")
    counts = {name: len(TIER_KINDS[StorageType[name]]) for name in storage_types}
    if tiers is None:
        for name, count in counts.items():
            if count > 1:
                raise fields.error("tiers", f"is missing; {name} has {count} tiers, say it of each")
        return _row_placement(fields.section("rows", required=True), topology), ()
    if not isinstance(tiers, list):
        raise fields.error("tiers", f"must be a list with one entry a tier, not {tiers!r}")
    for name, count in counts.items():
        if count == 1:
            raise fields.error("tiers", f"{name} has one tier; say rows: in its place")
        if count != len(tiers):
            raise fields.error("tiers", f"has {len(tiers)} entries; {name} has {count} tiers")
    return None, tuple(
        _row_placement(fields.fields_of(f"tiers[{i}]", tier), topology)
        for i, tier in enumerate(tiers)
    )


def _row_placement(fields: Fields, topology: Topology) -> RowPlacement:
    nodes = fields.take("nodes")
    if nodes == PMEM:
        if not topology.pmem.nodes:
            raise fields.error("nodes", f"topology {topology.name} has no persistent-memory node")
    elif nodes is not None:
        if not _is_node_list(nodes):
            raise fields.error("nodes", f"must be {PMEM} or a list of node numbers, not {nodes!r}")
        nodes = tuple(nodes)
    file_under = fields.take("file_under")
    if file_under == PMEM:
        if topology.pmem.path is None:
            raise fields.error("file_under", f"topology {topology.name} has no pmem.path")
    elif file_under == SSD:
        if topology.ssd is None:
            raise fields.error("file_under", f"topology {topology.name} has no ssd")
    elif file_under is not None and not (
        isinstance(file_under, str) and file_under.startswith("/")
    ):
        raise fields.error(
            "file_under", f"must be {PMEM}, {SSD} or an absolute path, not {file_under!r}"
        )
    is_pmem = fields.take("is_pmem")
    if is_pmem is not None and not isinstance(is_pmem, bool):
        raise fields.error("is_pmem", f"must be true or false, not {is_pmem!r}")
    if nodes is None and file_under is None and is_pmem is None:
        raise fields.error("nodes", "say where rows must lie: nodes, file_under or is_pmem")
    read, written = fields.take("read"), fields.take("written")
    if file_under == SSD and (read is None or written is None):
        raise fields.error(
            "read" if read is None else "written",
            "is missing; say how many bytes of the disk the run must read and write at least: "
            "rows that lie in a buffer, or in the page cache, are not on it",
        )
    if file_under != SSD and not (read is None and written is None):
        raise fields.error("read", f"is for file_under: {SSD}; there is no disk to ask otherwise")
    fields.finish()
    return RowPlacement(
        nodes,
        file_under,
        is_pmem,
        None if read is None else fields.bytes_of("read", read),
        None if written is None else fields.bytes_of("written", written),
    )


def _storage(fields: Fields) -> Storage:
    path = fields.take("path")
    if path is not None and not (isinstance(path, str) and path.startswith("/")):
        raise fields.error("path", f"must be an absolute path in the machine, not {path!r}")
    size = fields.take("size")
    sizes = [] if size is None else size if isinstance(size, list) else [size]
    try:
        size_bytes = tuple(map(parse_size, sizes))
    except ValueError as error:
        raise fields.error("size", str(error)) from None
    fields.finish()
    return Storage(path, size_bytes)


def _workload(top: Fields) -> Workload:
    """As stated in the scenario's file, or in one of its folder `workloads` by name."""
    value = top.take("workload")
    if not isinstance(value, str):
        return _workload_of(top.fields_of("workload", {} if value is None else value))
    folder = top.path.parent / "workloads"
    path = folder / f"{value}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in folder.glob("*.yaml"))) or "none"
        raise top.error("workload", f"there is no {path}; there are {there}")
    return _workload_of(Fields.of_file(path, ScenarioError))


def _saved_on(top: Fields, workload: Workload) -> SavedOn | None:
    value = top.take("saved_on")
    if value is None:
        return None
    fields = top.fields_of("saved_on", value)
    if workload.name != "tables":
        raise top.error("saved_on", f"only workload tables can be saved, not {workload.name}")
    topology = _topology(fields)
    storage_type = fields.text("storage_type")
    _check_storage_type(fields, "storage_type", storage_type)
    _check_disk(fields, (storage_type,), Storage(), topology)
    batches = fields.count("batches", 0)
    if batches == 0:
        raise fields.error("batches", "is missing")
    fields.finish()
    return SavedOn(topology, storage_type, batches)


def _power_cuts(
    top: Fields, workload: Workload, topology: Topology, storage_types: tuple[str, ...]
) -> PowerCuts | None:
    value = top.take("power_cuts")
    if value is None:
        return None
    if not takes_option(workload, "--kept-in"):
        raise top.error(
            "power_cuts", f"workload {workload.name} keeps nothing that it can go on from"
        )
    for storage_type in storage_types:
        if refusal := WORKLOADS[workload.name].refuses_to_keep(storage_type):
            raise top.error(
                "power_cuts", f"workload {workload.name} keeps no checkpoints of it: {refusal}"
            )
    fields = top.fields_of("power_cuts", value)
    count = fields.count("count", 0)
    if count == 0:
        raise fields.error("count", "is missing")
    cuts = PowerCuts(
        count=count,
        kept_on=_kept_on(fields, topology),
        after_line=fields.text("after_line", ""),
        after_lines=_lines_range(fields),
        within_s=_seconds_range(fields),
        seed=fields.count("seed", PowerCuts.seed),
    )
    if cuts.after_lines != PowerCuts.after_lines and not cuts.after_line:
        raise fields.error("after_lines", "of which lines? give after_line")
    if not cuts.after_line and cuts.within_s == PowerCuts.within_s:
        raise fields.error("after_line", "say when the power is cut: after_line, within_s or both")
    fields.finish()
    return cuts


def _predict_on(
    top: Fields, workload: Workload, storage_types: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    value = top.take("predict_on")
    if value is None:
        return ()
    if not takes_option(workload, "--predict"):
        raise top.error("predict_on", f"workload {workload.name} doesn't say what it did with rows")
    if not isinstance(value, list) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value
    ):
        raise top.error("predict_on", f"must be lists of devices, one a tier, not {value!r}")
    # As the topology's: a path is relative to the file that names it.
    placements = tuple(
        tuple(
            str(top.path.parent / name) if name.endswith((".yaml", ".yml")) else name
            for name in names
        )
        for names in value
    )
    for number, names in enumerate(placements):
        for storage_type in storage_types:
            try:
                load_placement("devices", ",".join(names), storage_type, direct_io=True)
            except LabError as error:
                raise top.error(f"predict_on[{number}]", str(error)) from error
    return placements


def _kept_on(fields: Fields, topology: Topology) -> str:
    medium = fields.text("kept_on")
    places = {PMEM: topology.pmem.path, SSD: topology.ssd and topology.ssd.path}
    if medium not in places:
        raise fields.error("kept_on", f"must be {PMEM} or {SSD}, not {medium!r}")
    if places[medium] is None:
        raise fields.error("kept_on", f"topology {topology.name} has no {medium}.path")
    if not topology.keeps_media:
        raise fields.error(
            "kept_on", f"nothing of topology {topology.name} outlives a power cut: it is all RAM"
        )
    return medium


def _lines_range(fields: Fields) -> tuple[int, int]:
    value = fields.take("after_lines")
    if value is None:
        return PowerCuts.after_lines
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(count) is int for count in value)
        or not 1 <= value[0] <= value[1]
    ):
        raise fields.error("after_lines", f"must be the least and the most lines, not {value!r}")
    return value[0], value[1]


def _seconds_range(fields: Fields) -> tuple[float, float]:
    value = fields.take("within_s")
    if value is None:
        return PowerCuts.within_s
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(map(is_number, value))
        or not 0 <= value[0] <= value[1]
        or value[1] == 0
    ):
        raise fields.error("within_s", f"must be the least and the most seconds, not {value!r}")
    return float(value[0]), float(value[1])


def _workload_of(fields: Fields) -> Workload:
    name = fields.text("name", Workload.name)
    if name not in WORKLOADS:
        raise fields.error("name", f"{name!r} is no workload; there are {', '.join(WORKLOADS)}")
    arguments = fields.take("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise fields.error("arguments", f"must be a mapping of options, not {arguments!r}")
    workload = Workload(name, arguments)
    for option in arguments:
        if f"--{option}" in _RUNNERS_OPTIONS:
            raise fields.error(f"arguments.{option}", "is set by the runner; see storage, expect")
    _check_arguments(fields, workload)
    fields.finish()
    return workload


def _check_arguments(fields: Fields, workload: Workload) -> None:
    """Let the workload's own parser judge, here rather than minutes later in a machine."""
    argv = workload.argv()
    try:
        _, unknown = WORKLOADS[workload.name].argument_parser().parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise fields.error("arguments", str(error)) from error
    if unknown:
        raise fields.error("arguments", f"{workload.name} does not take {shlex.join(unknown)}")


def _is_node_list(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and bool(value)
        and all(type(node) is int and node >= 0 for node in value)
    )
