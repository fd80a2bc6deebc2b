"""Scenarios: YAML files that state what is run where, and what must then hold.

`scenarios/README.md` documents the fields for those who write them.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.errors import TopologyError
from pmemlab.topology import Topology, load_topology, parse_size
from pmemlab.workloads import wdl

__all__ = [
    "Expectations",
    "RowPlacement",
    "Scenario",
    "ScenarioError",
    "Storage",
    "Workload",
    "load_scenario",
]

PMEM: Final = "pmem"
"""In a file: wherever the topology says that its persistent memory is."""
SSD: Final = "ssd"
"""In a file: wherever the topology says that its solid-state disk is."""

# Bytes that a tier of persistent memory takes for one of its size, at most: beside each row, the
# workload's shortest of which have 48 bytes, lie up to 48 more, and it has an eighth more rows.
_MEMORY_OF_A_TIER = 3
_PMEM_KINDS = (TierKind.PMEM, TierKind.PMEM_LIBPMEM, TierKind.PMEM_MEMKIND)
_SSD_KINDS = (TierKind.SSDHASH, TierKind.LEVELDB)

_WORKLOADS = {"wdl": wdl}
_RUNNERS_OPTIONS = ("--storage-type", "--storage-path", "--storage-size", "--reference", "--json")


class ScenarioError(ValueError):
    """A scenario's file is malformed; the message names the file and the field."""


@dataclass(frozen=True)
class Storage:
    """What the engine is given for every table.

    path: folder for tiers that keep files. Default: the topology's `pmem.path` for a libpmem tier,
        its `ssd.path` for one on a solid-state disk.
    size_bytes: of each tier, first tier first (`size` in the file: one, or a list). Default, also
        of those that are left out: of a tier of persistent memory, a third of the topology's
        `pmem.size` shared out evenly among the tables, since tiers take more memory than rows
        have floats; else the engine's.
    """

    path: str | None = None
    size_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    """What is run in the machine.

    name: a module of `pmemlab.workloads`. Default: wdl.
    arguments: option -> value, as on its command line without the dashes. Default: none.
    """

    name: str = "wdl"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def argv(self) -> list[str]:
        argv = []
        for option, value in self.arguments.items():
            values = value if isinstance(value, list) else [value]
            argv += [f"--{option}", *map(str, values)]
        return argv


@dataclass(frozen=True)
class RowPlacement:
    """Where every row of every table must lie; what is None is not asked.

    nodes: NUMA nodes that alone may hold pages of rows; "pmem": the topology's `pmem.nodes`.
    file_under: folder of the file that the rows are mapped from, or of a disk tier's own folder;
        "pmem": the topology's `pmem.path`, "ssd": its `ssd.path`.
    is_pmem: what libpmem must say of that mapping.
    """

    nodes: tuple[int, ...] | Literal["pmem"] | None = None
    file_under: str | None = None
    is_pmem: bool | None = None

    def on(self, topology: Topology) -> RowPlacement:
        """Return the same with the nodes and folders that "pmem" and "ssd" mean on a topology."""
        nodes = topology.pmem.nodes if self.nodes == PMEM else self.nodes
        file_under = self.file_under
        if file_under == PMEM:
            file_under = topology.pmem.path
        elif file_under == SSD and topology.ssd is not None:
            file_under = topology.ssd.path
        return RowPlacement(nodes, file_under, self.is_pmem)


@dataclass(frozen=True)
class Expectations:
    """What must hold after the run.

    rows: where the rows lie, for a storage type of one tier. This or `tiers` is required: a
        scenario that shows no placement shows little.
    tiers: where the rows of each tier lie, for one of several. Rows must then have moved both
        ways, and each tier be full that has rows below it.
    identical_to: storage type that must give the same losses and rows, to the bit, after the same
        steps on the same machine. Default: DRAM.
    auc_above: what the AUC on held-out rows must exceed. Default: not asked.
    """

    rows: RowPlacement | None
    identical_to: str = "DRAM"
    auc_above: float | None = None
    tiers: tuple[RowPlacement, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    name: the file's stem.
    summary: one line for people. Required.
    topology: the machine (in the file: one of the lab's by name, or a file's path). Required.
    storage_types: what the tables are put on, a test each. Required.
    expect: what must hold. Required.
    storage: where, and how large. Default: as the topology says.
    workload: what is run. Default: wdl with its own defaults.
    timeout_s: after so many seconds the run is stopped as stuck. Default: 600.
    """

    path: Path
    name: str
    summary: str
    topology: Topology
    storage_types: tuple[str, ...]
    expect: Expectations
    storage: Storage = field(default_factory=Storage)
    workload: Workload = field(default_factory=Workload)
    timeout_s: float = 600.0

    def argv(self, storage_type: str, python: str, topology: Topology) -> list[str]:
        """Return the command that runs the workload in a machine.

        python, topology: the machine's; a process has persistent memory at other places than the
        scenario's topology says.
        """
        argv = [python, "-m", f"pmemlab.workloads.{self.workload.name}", "--json"]
        argv += ["--storage-type", storage_type, "--reference", self.expect.identical_to]
        kinds = TIER_KINDS[StorageType[storage_type]]
        paths = [self._path(kind, topology) for kind in kinds]
        if any(paths):
            argv += ["--storage-path", *(path or wdl.NO_PATH for path in paths)]
        sizes = list(self.storage.size_bytes[: len(kinds)])
        for kind in kinds[len(sizes) :]:
            if kind not in _PMEM_KINDS or not topology.pmem.size_bytes:
                break  # the engine's own size, and of those that follow too
            sizes.append(topology.pmem.size_bytes // wdl.TABLES // _MEMORY_OF_A_TIER)
        if sizes:
            argv += ["--storage-size", *map(str, sizes)]
        return argv + self.workload.argv()

    def _path(self, kind: TierKind, topology: Topology) -> str | None:
        """Where a tier keeps its files on a machine of `topology`; None where it keeps none."""
        if kind in _SSD_KINDS:
            return self.storage.path or (topology.ssd.path if topology.ssd else None)
        if kind is TierKind.PMEM_LIBPMEM:
            return self.storage.path or topology.pmem.path
        return topology.pmem.path if kind is TierKind.PMEM else None  # without one: memkind


def load_scenario(path: Path) -> Scenario:
    """Load one file. Raises `ScenarioError`, naming the file and the field."""
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    top = _Fields(path, "", document)
    topology = _topology(top)
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
        workload=_workload(top.section("workload")),
        timeout_s=top.number("timeout_s", Scenario.timeout_s),
    )
    top.finish()
    return scenario


class _Fields:
    """One mapping of a file, so that every error can name the file and the field."""

    def __init__(self, path: Path, prefix: str, document: object) -> None:
        self.path = path
        self._prefix = prefix
        if not isinstance(document, dict):
            where = prefix.rstrip(".") or "the file"
            raise ScenarioError(f"{path}: {where}: must be a mapping of fields, not {document!r}")
        self._document: dict[object, Any] = dict(document)
        self._known: list[str] = []

    def take(self, name: str) -> Any:
        self._known.append(name)
        return self._document.pop(name, None)

    def section(self, name: str, *, required: bool = False) -> _Fields:
        value = self.take(name)
        if value is None:
            if required:
                raise self.error(name, "is missing")
            value = {}
        return _Fields(self.path, f"{self._prefix}{name}.", value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.take(name)
        if value is None:
            if default is None:
                raise self.error(name, "is missing")
            return default
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, f"must be text, not {value!r}")
        return " ".join(value.split())

    def number(self, name: str, default: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        if not _is_number(value) or value <= 0:
            raise self.error(name, f"must be a number above 0, not {value!r}")
        return float(value)

    def error(self, name: str, problem: str) -> ScenarioError:
        return ScenarioError(f"{self.path}: {self._prefix}{name}: {problem}")

    def finish(self) -> None:
        """Refuse what is left: a misspelt field would otherwise be a silent default."""
        for name in self._document:
            raise self.error(str(name), f"is no field here; there are {', '.join(self._known)}")


def _topology(top: _Fields) -> Topology:
    name = top.text("topology")
    # A path is relative to the file that names it.
    where = top.path.parent / name if name.endswith((".yaml", ".yml")) else name
    try:
        return load_topology(where)
    except TopologyError as error:
        raise top.error("topology", str(error)) from error


def _storage_types(top: _Fields) -> tuple[str, ...]:
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


def _check_storage_type(fields: _Fields, name: str, value: object) -> None:
    if value not in StorageType.__members__:
        names = ", ".join(StorageType.__members__)
        raise fields.error(name, f"{value!r} is no storage type; there are {names}")


def _check_disk(
    top: _Fields, storage_types: tuple[str, ...], storage: Storage, topology: Topology
) -> None:
    for name in storage_types:
        if storage.path is None and topology.ssd is None and _tiers_of(name, _SSD_KINDS):
            raise top.error(
                "storage_types",
                f"{name} needs a disk, but topology {topology.name} has no ssd; "
                "take one that has, or give storage.path",
            )


def _tiers_of(storage_type: str, kinds: Sequence[TierKind]) -> int:
    return sum(kind in kinds for kind in TIER_KINDS[StorageType[storage_type]])


def _expectations(
    fields: _Fields, topology: Topology, storage_types: tuple[str, ...]
) -> Expectations:
    rows, tiers = _placements(fields, topology, storage_types)
    identical_to = fields.text("identical_to", Expectations.identical_to)
    _check_storage_type(fields, "identical_to", identical_to)
    auc_above = fields.take("auc_above")
    if auc_above is not None and not (_is_number(auc_above) and 0 <= auc_above < 1):
        raise fields.error("auc_above", f"must be a number in [0, 1), not {auc_above!r}")
    fields.finish()
    return Expectations(rows, identical_to, auc_above, tiers)


def _placements(
    fields: _Fields, topology: Topology, storage_types: tuple[str, ...]
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
        _row_placement(_Fields(fields.path, f"expect.tiers[{i}].", tier), topology)
        for i, tier in enumerate(tiers)
    )


def _row_placement(fields: _Fields, topology: Topology) -> RowPlacement:
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
    fields.finish()
    return RowPlacement(nodes, file_under, is_pmem)


def _storage(fields: _Fields) -> Storage:
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


def _workload(fields: _Fields) -> Workload:
    name = fields.text("name", Workload.name)
    if name not in _WORKLOADS:
        raise fields.error("name", f"{name!r} is no workload; there are {', '.join(_WORKLOADS)}")
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


def _check_arguments(fields: _Fields, workload: Workload) -> None:
    """Let the workload's own parser judge, here rather than minutes later in a machine."""
    argv = workload.argv()
    try:
        _, unknown = _WORKLOADS[workload.name].argument_parser().parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise fields.error("arguments", str(error)) from error
    if unknown:
        raise fields.error("arguments", f"{workload.name} does not take {shlex.join(unknown)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_node_list(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and bool(value)
        and all(type(node) is int and node >= 0 for node in value)
    )
