"""Topologies: YAML files that state a machine once.

A file says what QEMU is given, what is then run in the guest, where the persistent memory is to
be found afterwards, and which facts must hold before anyone may use the machine. It may say that it
is like another one, and then says but what differs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pmemlab.errors import TopologyError, UnknownFactError
from pmemlab.guest.fact_names import FACTS, is_fact_name
from pmemlab.yaml_fields import Fields

__all__ = [
    "PersistentMemory",
    "ProvisionStep",
    "Requirements",
    "SolidStateDisk",
    "Topology",
    "load_topology",
    "topology_names",
]

_FOLDER = Path(__file__).parent / "topologies"


@dataclass(frozen=True)
class PersistentMemory:
    """Where a program in the machine finds persistent memory.

    path: folder on a DAX mount, for libpmem. Default: none.
    nodes: NUMA nodes made of it, for memkind. Default: none.
    size_bytes: how much a program may use (`size` in the file). Default: 0.
    """

    path: str | None = None
    nodes: tuple[int, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True)
class SolidStateDisk:
    """Where a program in the machine finds a solid-state disk.

    path: folder on a file system of that disk.
    """

    path: str


@dataclass(frozen=True)
class Requirements:
    """The least versions with which a machine was seen to work. Default: any.

    qemu: as `qemu-system-x86_64 --version` says, "10.0". kernel: the guest's, "6.12".
    """

    qemu: str = ""
    kernel: str = ""


@dataclass(frozen=True)
class ProvisionStep:
    """A shell command, run in the guest as root.

    formats: it makes something on a new medium that stays there (labels, a namespace, a file
        system) and would destroy what a used one holds: run at the first boot only. Others are run
        at each.
    """

    command: str
    formats: bool = False


@dataclass(frozen=True)
class Topology:
    """One emulated machine.

    name: the file's stem. Required.
    summary: one line for people. Required.
    proof: what must hold, fact -> value, by the names of `pmemlab.guest.fact_names`, with dots
        between levels ("mount.dax: true") and a star for every item of a list
        ("regions.*.modes: [[fsdax]]"). Required: a machine that proves nothing is refused.
    guide: the mode's name in DeepRec's guide "Embedding on PMEM". Default: "".
    requires: least versions of QEMU and of the guest's kernel. Default: any.
    cpus: virtual CPUs. Default: 1, with which QEMU's TCG needs no atomics: a third less work.
    memory_bytes: RAM at boot (`memory` in the file). Default: 1G.
    backing_files: name -> bytes; sparse files that are the DIMMs' and disks' media. QEMU
        arguments refer to one by "{name}". Default: none.
    machine_options: added to QEMU's `-machine q35`. Default: "".
    cpu_options: added to QEMU's `-cpu`. Default: "".
    qemu: further QEMU arguments, as on a command line. Default: none.
    kernel_command_line: added to the kernel's command line. Default: "".
    provision: what is run in the guest in this order. In the file a list of commands; those for new
        media alone stand in lists of their own below `format`. Default: none.
    environment: of every command that is run in the machine. Default: none.
    pmem: where the persistent memory is. Default: nowhere.
    ssd: where the solid-state disk is. Default: there is none.
    """

    name: str
    summary: str
    proof: Mapping[str, object]
    guide: str = ""
    requires: Requirements = field(default_factory=Requirements)
    cpus: int = 1
    memory_bytes: int = 1 << 30
    backing_files: Mapping[str, int] = field(default_factory=dict)
    machine_options: str = ""
    cpu_options: str = ""
    qemu: tuple[str, ...] = ()
    kernel_command_line: str = ""
    provision: tuple[ProvisionStep, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pmem: PersistentMemory = field(default_factory=PersistentMemory)
    ssd: SolidStateDisk | None = None

    @property
    def keeps_media(self) -> bool:
        """Whether the machine has media that outlive a power cut: those in backing files.

        RAM that the kernel's command line declares persistent does not: it is plain RAM.
        """
        return bool(self.backing_files)

    def provision_commands(self, *, new_media: bool) -> list[str]:
        """Of a boot on media that are new, or that have been used before."""
        return [step.command for step in self.provision if new_media or not step.formats]


def topology_names() -> list[str]:
    """Names of the lab's own topologies, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_topology(name_or_path: str | Path) -> Topology:
    """Load one of the lab's own topologies by name, or any by its file's path.

    Raises `TopologyError`, naming the file and the field.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = _FOLDER / f"{name_or_path}.yaml"
        if not path.is_file():
            raise TopologyError(
                f"topology: there is no {str(name_or_path)!r}; {_there_are()}, "
                "or give the path of a .yaml file"
            )
    return _topology(_fields_of(path))


def _fields_of(path: Path) -> Fields:
    """Those of a file, and, where it is like another topology, the other's that it leaves out."""
    own = Fields.of_file(path, TopologyError)
    name = own.text("like", "")
    if not name:
        return own
    other = _FOLDER / f"{name}.yaml"
    if not other.is_file():
        raise own.error("like", f"{name!r} is none of the lab's own; {_there_are()}")
    base = Fields.of_file(other, TopologyError)
    if base.text("like", ""):
        raise own.error("like", f"{name} is like another one itself; name that one")
    for never_taken_over in ("name", "summary"):
        base.take(never_taken_over)
    own.complete(base, merged=("proof",))
    return own


def _there_are() -> str:
    return f"there are {', '.join(topology_names())}"


def _topology(top: Fields) -> Topology:
    name = top.text("name")
    if name != top.path.stem:
        raise top.error("name", f"is {name!r}, but the file is called {top.path.name}")
    topology = Topology(
        name=name,
        summary=top.text("summary"),
        proof=_proof(top),
        guide=top.text("guide", ""),
        requires=_requires(top),
        cpus=top.count("cpus", Topology.cpus),
        memory_bytes=top.size("memory", Topology.memory_bytes),
        backing_files={
            key: top.bytes_of(f"backing_files.{key}", value)
            for key, value in top.mapping("backing_files").items()
        },
        machine_options=top.text("machine_options", ""),
        cpu_options=top.text("cpu_options", ""),
        qemu=top.texts("qemu"),
        kernel_command_line=top.text("kernel_command_line", ""),
        provision=_provision(top),
        environment=_environment(top),
        pmem=_pmem(top),
        ssd=_ssd(top),
    )
    top.finish()
    _check_qemu(top, topology)
    return topology


def _proof(top: Fields) -> dict[str, object]:
    proof = top.mapping("proof", required=True)
    for name, value in proof.items():
        if not is_fact_name(name):
            raise top.error("proof", str(UnknownFactError(name, [*FACTS])))
        if value is None:
            raise top.error(f"proof.{name}", "is empty: give the value that the fact must have")
    return proof


def _requires(top: Fields) -> Requirements:
    fields = top.section("requires")
    versions = {}
    for name in ("qemu", "kernel"):
        versions[name] = fields.text(name, "")
        if not re.fullmatch(r"([0-9]+(\.[0-9]+)*)?", versions[name]):
            raise fields.error(name, f"must be a version in quotes, not {versions[name]!r}")
    fields.finish()
    return Requirements(**versions)


def _provision(top: Fields) -> tuple[ProvisionStep, ...]:
    value = top.take("provision")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise top.error("provision", f"must be a list, not {value!r}")
    steps: list[ProvisionStep] = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            steps.append(ProvisionStep(item))
            continue
        fields = top.fields_of(f"provision[{index}]", item)
        commands = fields.texts("format")
        fields.finish()
        if not commands:
            raise fields.error("format", "must be a list of commands for new media")
        steps += [ProvisionStep(command, formats=True) for command in commands]
    return tuple(steps)


def _environment(top: Fields) -> dict[str, str]:
    environment = top.mapping("environment")
    for key, value in environment.items():
        if not isinstance(value, str):
            raise top.error(f"environment.{key}", f"must be text in quotes, not {value!r}")
    return environment


def _pmem(top: Fields) -> PersistentMemory:
    mapping = top.mapping("pmem")
    if not mapping:
        return PersistentMemory()
    fields = top.fields_of("pmem", mapping)
    path = fields.absolute_path("path")
    nodes = fields.take("nodes") or []
    if not isinstance(nodes, list) or not all(type(n) is int and n >= 0 for n in nodes):
        raise fields.error("nodes", f"must be a list of node numbers, not {nodes!r}")
    size = fields.take("size")
    fields.finish()
    if path is None and not nodes:
        raise top.error("pmem", "must have a path or nodes")
    if size is None:
        raise fields.error("size", "is missing")
    return PersistentMemory(path, tuple(nodes), fields.bytes_of("size", size))


def _ssd(top: Fields) -> SolidStateDisk | None:
    mapping = top.mapping("ssd")
    if not mapping:
        return None
    fields = top.fields_of("ssd", mapping)
    path = fields.absolute_path("path")
    fields.finish()
    if path is None:
        raise fields.error("path", "is missing")
    return SolidStateDisk(path)


def _check_qemu(top: Fields, topology: Topology) -> None:
    names = {name: f"/{name}" for name in topology.backing_files}
    for index, argument in enumerate(topology.qemu):
        try:
            shlex.split(argument.format(**names))
        except (KeyError, IndexError, ValueError) as error:
            raise top.error(
                f"qemu[{index}]",
                f"{argument!r} can't be used ({error}); in braces there may be only the names "
                f"of backing_files: {', '.join(names) or 'there are none'}",
            ) from None
