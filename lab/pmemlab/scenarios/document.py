"""What a scenario says: what is run where, and what must then hold.

`scenarios/README.md` documents the fields for those who write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from pmemlab.topology import Topology

__all__ = [
    "PMEM",
    "SSD",
    "Expectations",
    "PowerCuts",
    "RowPlacement",
    "SavedOn",
    "Scenario",
    "ScenarioError",
    "Storage",
    "Workload",
]

PMEM: Final = "pmem"
"""In a file: wherever the topology says that its persistent memory is."""
SSD: Final = "ssd"
"""In a file: wherever the topology says that its solid-state disk is."""


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
    arguments: option -> value, as on its command line without the dashes; true for one that takes
        no value. Default: none.

    In a scenario's file it may be a name: then both are in workloads/NAME.yaml beside that file.
    """

    name: str = "wdl"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def argv(self) -> list[str]:
        argv = []
        for option, value in self.arguments.items():
            if value is False:
                continue
            values = [] if value is True else value if isinstance(value, list) else [value]
            argv += [f"--{option}", *map(str, values)]
        return argv


@dataclass(frozen=True)
class SavedOn:
    """Where a run begins that goes on elsewhere.

    topology: the machine (in the file as a scenario's own). Required.
    storage_type: what the tables are on there. Required.
    batches: after which they are saved. Required.
    """

    topology: Topology
    storage_type: str
    batches: int


@dataclass(frozen=True)
class PowerCuts:
    """Power cuts that the run must outlive: after each the machine boots again on its media, and
    the same command, which goes on from what it kept there, is run again.

    count: how many. Required.
    kept_on: "pmem" or "ssd", the topology's medium that the command keeps checkpoints on. Required.
    after_line: text; each cut comes once the command has written a line that has it. Default: from
        the command's start.
    after_lines: least and most of these lines that come first; how many is drawn for each cut.
        Default: one.
    within_s: least and most seconds that pass from then on. Default: none; this or `after_line` is
        required.
    seed: of what is drawn. Default: 1.
    """

    count: int
    kept_on: str
    after_line: str = ""
    within_s: tuple[float, float] = (0.0, 0.0)
    seed: int = 1
    after_lines: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class RowPlacement:
    """Where every row of every table must lie; what is None is not asked.

    nodes: NUMA nodes that alone may hold pages of rows; "pmem": the topology's `pmem.nodes`.
    file_under: folder of the file that the rows are mapped from, or of a disk tier's own folder;
        "pmem": the topology's `pmem.path`, "ssd": its `ssd.path`.
    is_pmem: what libpmem must say of that mapping.
    read_bytes, written_bytes: what the kernel must at least have read from and written to the
        topology's disk during the run (`read` and `written` in the file).
    """

    nodes: tuple[int, ...] | Literal["pmem"] | None = None
    file_under: str | None = None
    is_pmem: bool | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None

    def on(self, topology: Topology) -> RowPlacement:
        """Return the same with the nodes and folders that "pmem" and "ssd" mean on a topology."""
        nodes = topology.pmem.nodes if self.nodes == PMEM else self.nodes
        file_under = self.file_under
        if file_under == PMEM:
            file_under = topology.pmem.path
        elif file_under == SSD and topology.ssd is not None:
            file_under = topology.ssd.path
        return replace(self, nodes=nodes, file_under=file_under)


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
    saved_on: another machine on which the run begins; what it saved is restored on this one.
        Default: it begins here.
    power_cuts: what the run must outlive. Default: none.
    predict_on: placements that the run's rates are predicted for, each a list of devices, one a
        tier; `here`: as on the machine. Default: none.
    timeout_s: after so many seconds the run is stopped as stuck. Default: 600.
    memory_here: device file of the memory that its tiers are on, for predictions. Not in the file:
        it is the computer's. Default: isn't known.
    """

    path: Path
    name: str
    summary: str
    topology: Topology
    storage_types: tuple[str, ...]
    expect: Expectations
    storage: Storage = field(default_factory=Storage)
    workload: Workload = field(default_factory=Workload)
    saved_on: SavedOn | None = None
    power_cuts: PowerCuts | None = None
    predict_on: tuple[tuple[str, ...], ...] = ()
    timeout_s: float = 600.0
    memory_here: Path | None = None
