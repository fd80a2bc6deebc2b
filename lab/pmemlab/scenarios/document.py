"""The fields of a scenario: what runs where, and what must then hold.

`scenarios/README.md` documents the fields for the authors of scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pmemlab.schema import (
    YAML_SUFFIXES,
    AbsolutePath,
    Count,
    Document,
    FieldError,
    Must,
    Parsed,
    Seconds,
    Size,
    Text,
    Texts,
    parse_size,
)
from pmemlab.topology import Topology, load_topology
from pmemlab.workloads.witness import EMULATED_GPU

__all__ = [
    "PLACES",
    "PMEM",
    "RESULTS",
    "SSD",
    "Expectations",
    "PowerCuts",
    "Rated",
    "RowPlacement",
    "SavedOn",
    "Scenario",
    "ScenarioError",
    "Storage",
    "Workload",
]

PMEM: Final = "pmem"
"""In a file: the topology's persistent memory."""
SSD: Final = "ssd"
"""In a file: the topology's solid-state disk."""


PLACES: Final = "where rows lie"
RESULTS: Final = "what was learnt"


class ScenarioError(ValueError):
    """A scenario's file is malformed; the message names the file, the line and the field."""


def _topology(name: object, context: Mapping[str, Any]) -> Topology:
    if not isinstance(name, str):
        raise FieldError(f"must be a topology's name or the path of its file, not {name!r}")
    # A path is relative to the file that names it.
    return load_topology(_relative_to_file(context["path"], name))


def _relative_to_file(path: Path, name: str) -> str:
    """Returns a name, or the path of a file, relative to the file `path` that names it."""
    return str(path.parent / name) if name.endswith(YAML_SUFFIXES) else name


def _placements(value: object, context: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value
    ):
        raise FieldError(f"must be lists of devices, one a tier, not {value!r}")
    return tuple(
        tuple(_relative_to_file(context["path"], name) for name in names) for names in value
    )


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(map(parse_size, value if isinstance(value, list) else [value]))


def _nodes(value: object) -> object:
    if value == PMEM:
        return value
    if (
        not isinstance(value, list)
        or not value
        or not all(type(n) is int and n >= 0 for n in value)
    ):
        raise FieldError(f"must be {PMEM} or a list of node numbers, not {value!r}")
    return tuple(value)


_Machine = Annotated[Topology, Parsed(_topology, with_context=True)]


@dataclass(frozen=True)
class Storage(Document, aliases={"size_bytes": "size"}):
    """The engine's storage options for every table.

    path: folder for tiers that keep files. Default: the topology's `pmem.path` for a libpmem tier,
        its `ssd.path` for a tier on a solid-state disk.
    size_bytes: of each tier, first tier first (`size` in the file: one, or a list). Default, also
        for tiers left out: for persistent memory a third of the topology's `pmem.size`, divided
        evenly among the tables, since tiers take more memory than rows have floats; for others the
        engine's.
    """

    path: AbsolutePath | None = None
    size_bytes: Annotated[tuple[int, ...], Parsed(_sizes)] = ()


_Options: TypeAlias = Annotated[Mapping[str, Any], Must("a mapping of options")]


@dataclass(frozen=True)
class Rated(Document):
    """The workload in larger size, as run on this computer without an emulated machine.

    Small tables lie in a processor's caches, where devices do not matter.

    rows_times: factor for the tables' rows and the tiers' sizes. Required.
    arguments: options that differ. Required.
    """

    rows_times: Count
    arguments: _Options


@dataclass(frozen=True)
class Workload(Document):
    """The program to run in the machine: a workload of the lab's, or a program of the user's.

    name: a module of `pmemlab.workloads`. Default: wdl.
    arguments: option -> value, as on its command line without the dashes; true for an option that
        takes no value. Default: none.
    rated: how to run it on this computer to model its rate. Default: its rate is not modelled.
    command: a program and its arguments, instead of the above; see `program`. Default: none.
    files: further files and folders that the command needs, relative to the scenario's file.
    Default: none.
    """

    name: Text = "wdl"
    arguments: _Options = field(default_factory=dict)
    rated: Rated | None = None
    command: Annotated[tuple[str, ...], Must("a list of texts, the program first", len)] = ()
    files: Texts = ()

    def argv(self) -> list[str]:
        argv = []
        for option, value in self.arguments.items():
            if value is False:
                continue
            values = [] if value is True else value if isinstance(value, list) else [value]
            argv += [f"--{option}", *map(str, values)]
        return argv


@dataclass(frozen=True)
class SavedOn(Document):
    """The first part of a run, on another machine.

    topology: the machine (in the file as a scenario's own). Required.
    storage_type: the tables' storage type there. Required.
    batches: number of batches after which the tables are saved. Required.
    """

    topology: _Machine
    storage_type: Text
    batches: Count


@dataclass(frozen=True)
class PowerCuts(Document):
    """Power cuts that the run must outlive. After each, the machine boots again on its media and
    runs the same command again, which goes on from its checkpoint there.

    count: number of cuts. Required.
    kept_on: "pmem" or "ssd", the topology's medium with the command's checkpoints. Required.
    after_line: text; each cut comes after the command has written a line that contains it. Default:
    from the command's start.
    after_lines: least and most of these lines before the cut; drawn for each cut. Default: one.
    within_s: least and most seconds that pass from then on. Default: none; this or `after_line` is
        required.
    seed: of the random numbers. Default: 1.
    """

    count: Count
    kept_on: Annotated[str, Must(f"{PMEM} or {SSD}", lambda medium: medium in (PMEM, SSD))]
    after_line: Text = ""
    within_s: Annotated[
        tuple[float, float],
        Must("the least and the most seconds", lambda s: 0 <= s[0] <= s[1] and s[1] > 0),
    ] = (0.0, 0.0)
    seed: Count = 1
    after_lines: Annotated[
        tuple[int, int], Must("the least and the most lines", lambda s: 1 <= s[0] <= s[1])
    ] = (1, 1)

    def check(self) -> None:
        if self.after_lines != PowerCuts.after_lines and not self.after_line:
            raise FieldError("of which lines? give after_line", "after_lines")
        if not self.after_line and self.within_s == PowerCuts.within_s:
            raise FieldError(
                "say when the power is cut: after_line, within_s or both", "after_line"
            )


@dataclass(frozen=True)
class RowPlacement(Document, aliases={"read_bytes": "read", "written_bytes": "written"}):
    """The place where every row of every table must lie. A field that is None is not checked.

    nodes: NUMA nodes that alone may hold pages of rows; "pmem": the topology's `pmem.nodes`.
    file_under: folder of the file that the rows are mapped from, or of a disk tier's own folder;
    "pmem": the topology's `pmem.path`, "ssd": its `ssd.path`.
    gpu: the GPU whose memory must hold them; only the emulated GPU's can be read.
    is_pmem: the answer that libpmem must give for that mapping.
    read_bytes, written_bytes: least bytes that the kernel must have read from and written to the
    topology's disk during the run (`read` and `written` in the file).
    """

    nodes: Annotated[tuple[int, ...] | Literal["pmem"] | None, Parsed(_nodes)] = None
    file_under: (
        Annotated[
            str,
            Must(
                f"{PMEM}, {SSD} or an absolute path",
                lambda path: path in (PMEM, SSD) or path.startswith("/"),
            ),
        ]
        | None
    ) = None
    gpu: Annotated[str, Must(EMULATED_GPU, lambda gpu: gpu == EMULATED_GPU)] | None = None
    is_pmem: Annotated[bool, Must("true or false")] | None = None
    read_bytes: Size | None = None
    written_bytes: Size | None = None

    def check(self) -> None:
        if all(each is None for each in (self.nodes, self.file_under, self.gpu, self.is_pmem)):
            raise FieldError("say where rows must lie: nodes, file_under, gpu or is_pmem", "nodes")
        for name, least in (("read", self.read_bytes), ("written", self.written_bytes)):
            if self.file_under == SSD and least is None:
                raise FieldError(
                    "is missing; say how many bytes of the disk the run must read and write at "
                    "least: rows that lie in a buffer, or in the page cache, are not on it",
                    name,
                )
            if self.file_under != SSD and least is not None:
                raise FieldError(
                    f"is for file_under: {SSD}; there is no disk to ask otherwise", name
                )

    def resolved_on(self, topology: Topology) -> RowPlacement:
        """Returns the placement with a topology's nodes and folders for "pmem" and "ssd"."""
        nodes = topology.pmem.nodes if self.nodes == PMEM else self.nodes
        file_under = self.file_under
        if file_under == PMEM:
            file_under = topology.pmem.path
        elif file_under == SSD and topology.ssd is not None:
            file_under = topology.ssd.path
        return replace(self, nodes=nodes, file_under=file_under)


@dataclass(frozen=True)
class Expectations(Document):
    """The conditions that must hold after the run.

    rows: where the rows lie, for a storage type of one tier. This or `tiers` is required, except
        for a program of the user's: a condition that is not given is not judged.
    tiers: where the rows of each tier lie, for a type of several tiers. Rows must then have moved
        both ways, and each tier above another be full.
    identical_to: storage type that must give the same losses and rows, to the bit, after the same
        steps on the same machine. Default: DRAM; for a program of the user's none.
    auc_above: bound that the AUC on held-out rows must exceed. Default: none.
    """

    rows: RowPlacement | None = None
    identical_to: Text = ""
    auc_above: Annotated[float, Must("a number in [0, 1)", lambda auc: 0 <= auc < 1)] | None = None
    tiers: Annotated[
        tuple[RowPlacement, ...], Must("a list with one entry a tier", len, items_too=True)
    ] = ()


@dataclass(frozen=True)
class Scenario(Document, context=("path", "name", "memory_here", "direct_io"), extra=("like",)):
    """A scenario.

    name: the file's stem.
    summary: one line for people. Required.
    topology: the machine (in the file: one of the lab's by name, or a file's path). Required.
    storage_types: storage types of the tables, a test for each. Required.
    expect: the conditions. Required.
    storage: paths and sizes. Default: as the topology says.
    workload: the program. Default: wdl with its own defaults.
    saved_on: another machine on which the run begins; its save is restored on this one. Default: it
        begins here.
    power_cuts: the power cuts that the run must outlive. Default: none.
    predict_on: placements for which the run's rates are predicted, each a list of devices, one a
        tier; `here`: as on the machine. Default: none.
    timeout_s: seconds after which the run is stopped as stuck. Default: 600.
    markers: names of pytest markers that its tests get, for `pytest -m`. Default: none.
    memory_here: device file of this computer's memory, for predictions. Not in the file, since it
        belongs to the computer. Default: unknown.
    direct_io: whether SSDHASH tiers read past the page cache, so that rates are the disk's. Not in
        the file, since it depends on the machine. Default: no.
    """

    path: Path
    name: str
    summary: Text
    topology: _Machine
    storage_types: Annotated[tuple[str, ...], Must("a list of storage types", len)]
    expect: Expectations
    storage: Storage = field(default_factory=Storage)
    workload: Workload = field(default_factory=Workload)
    saved_on: SavedOn | None = None
    power_cuts: PowerCuts | None = None
    predict_on: Annotated[tuple[tuple[str, ...], ...], Parsed(_placements, with_context=True)] = ()
    timeout_s: Seconds = 600.0
    markers: Annotated[tuple[str, ...], Must("a list of names", len)] = ()
    memory_here: Path | None = None
    direct_io: bool = False

    @property
    def reference_storage_type(self) -> str:
        """The storage type that must give the same results; "" if none must."""
        return self.expect.identical_to or ("" if self.workload.command else "DRAM")

    @property
    def not_judged(self) -> tuple[str, ...]:
        """The conditions that a program of the user's is not judged by."""
        wants_places = self.expect.rows is not None or self.expect.tiers
        return (
            *(() if wants_places else (PLACES,)),
            *(() if self.reference_storage_type else (RESULTS,)),
        )
