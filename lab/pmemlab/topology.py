"""Topologies: YAML files that each describe a machine.

A file gives the QEMU arguments, the commands to run in the guest, the place of the persistent
memory after that, and the facts that must hold before the machine may be used. A file may name
another topology by `like` and give only the differences.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Final

from pmemlab.errors import TopologyError, UnknownFactError
from pmemlab.machines.guest.fact_names import FACTS, fact_meaning, is_fact_name, shape_error
from pmemlab.schema import (
    YAML_SUFFIXES,
    AbsolutePath,
    Count,
    Document,
    FieldError,
    File,
    Mib,
    Must,
    Nodes,
    Parsed,
    Size,
    Text,
    Texts,
    content_of,
)

__all__ = [
    "GPU_VARIABLE",
    "MISLEADING",
    "PersistentMemory",
    "ProvisionStep",
    "Requirements",
    "SolidStateDisk",
    "StandsFor",
    "Topology",
    "load_topology",
    "topology_names",
]

_FOLDER = Path(__file__).parent / "topologies"
_DEVICES = Path(__file__).parent / "model" / "devices"

GPU_VARIABLE: Final = "EMBSTORE_DEVICE"
"""The variable in a topology's environment that names the GPU of its programs."""

MISLEADING: Final = {
    "PMEM_IS_PMEM_FORCE": "makes libpmem take any memory for persistent",
    "PMEM2_FORCE_GRANULARITY": "makes libpmem2 take any memory for persistent",
    "PMEM_NO_FLUSH": "turns libpmem's flushes off",
    "LD_AUDIT": "can put another library in libpmem's place",
    "LD_LIBRARY_PATH": "can put another library in libpmem's place",
    "LD_PRELOAD": "can put another library in libpmem's place",
}
"""Environment variables under which libpmem's answers prove nothing, each with the reason."""

_PROOF_OF_DAX: Final = {
    "mount.dax": "true",
    "mount.map_sync": "true",
    "mount.page_regions": "the regions that its pages lie in, as [region0]",
}
_PLAIN_MEMORY: Final = "libpmem.is_pmem"
"""A proof that demands the value 0 says that a folder is on plain memory, and claims nothing."""
_PLAIN_NODES: Final = "kmem_bytes"
"""A proof that demands the value 0 says that the nodes are plain memory."""

_Version = Annotated[
    str, Must("a version in quotes", lambda text: re.fullmatch(r"[0-9]+(\.[0-9]+)*", text))
]


@dataclass(frozen=True)
class PersistentMemory(Document, aliases={"size_bytes": "size"}):
    """The persistent memory of a machine, as its programs find it.

    path: folder on a DAX mount, for libpmem. Default: none.
    nodes: NUMA nodes of persistent memory, for memkind. Default: none.
    size_bytes: bytes that a program may use (`size` in the file). Default: 0.
    """

    path: AbsolutePath | None = None
    nodes: Nodes = ()
    size_bytes: Size = 0

    def check(self) -> None:
        if self.path is None and not self.nodes:
            raise FieldError("must have a path or nodes")
        if self.size_bytes == 0:
            raise FieldError("is missing", "size")


@dataclass(frozen=True)
class SolidStateDisk(Document):
    """The solid-state disk of a machine, as its programs find it.

    path: folder on a file system of that disk.
    """

    path: AbsolutePath


@dataclass(frozen=True)
class StandsFor(Document):
    """The devices that a machine's emulated media stand for: names of `pmemlab model devices`.

    The rates of its runs are modelled on these. dram: its DRAM, or that of such a machine without
    persistent memory. pmem: its persistent memory. ssd: its solid-state disk. gpu: its GPU. memory:
    the memory that its kernel uses as RAM, if that isn't DRAM. Default of each: no device.
    """

    dram: Text = ""
    pmem: Text = ""
    ssd: Text = ""
    gpu: Text = ""
    memory: Text = ""


@dataclass(frozen=True)
class Requirements(Document):
    """The lowest versions with which a machine was seen to work. Default: any.

    qemu: as `qemu-system-x86_64 --version` says, "10.0". kernel: the guest's, "6.12".
    """

    qemu: _Version = ""
    kernel: _Version = ""


@dataclass(frozen=True)
class ProvisionStep:
    """A shell command, run in the guest as root.

    formats: the command makes something lasting on a new medium (labels, a namespace, a file
        system) and would destroy the content of a used medium, so it runs at the first boot only.
        Other commands run at every boot.
    """

    command: str
    formats: bool = False


def _provision(steps: object) -> tuple[ProvisionStep, ...]:
    if not isinstance(steps, list):
        raise FieldError(f"must be a list, not {steps!r}")
    return tuple(step for index, item in enumerate(steps) for step in _steps(item, f"[{index}]"))


def _steps(item: object, at: str) -> list[ProvisionStep]:
    """Returns the steps of an item of `provision`: one command, or a list below `format`."""
    if isinstance(item, str):
        return [ProvisionStep(item)]
    if not isinstance(item, dict) or [*item] != ["format"]:
        raise FieldError(f"must be a command, or format: with a list of commands, not {item!r}", at)
    commands = item["format"]
    if not (isinstance(commands, list) and commands and all(type(c) is str for c in commands)):
        raise FieldError(
            f"must be a list of commands for new media, not {commands!r}", f"{at}.format"
        )
    return [ProvisionStep(command, formats=True) for command in commands]


@dataclass(frozen=True)
class Topology(Document, aliases={"memory_bytes": "memory"}, extra=("like",)):
    """One emulated machine.

    name: the file's stem. Required.
    summary: one line for people. Required.
    proof: the facts that must hold, fact -> value, by the names of `machines.guest.fact_names`,
        with dots between levels ("mount.dax: true") and a star for every item of a list
        ("regions.*.modes: [[fsdax]]"). Required: a machine that proves nothing is refused.
    guide: the mode's name in DeepRec's guide "Embedding on PMEM". Default: "".
    requires: lowest versions of QEMU and of the guest's kernel. Default: any.
    cpus: virtual CPUs. Default: 1, for which QEMU's TCG needs no atomics: a third less work.
    memory_bytes: RAM at boot (`memory` in the file). Default: 1G.
    backing_files: name -> bytes; sparse files that are the media of DIMMs and disks. QEMU arguments
        refer to a file by "{name}". Default: none.
    machine_options: added to QEMU's `-machine q35`. Default: "".
    cpu_options: added to QEMU's `-cpu`. Default: "".
    qemu: further QEMU arguments, as on a command line. Default: none.
    kernel_command_line: added to the kernel's command line. Default: "".
    provision: commands to run in the guest, in order. In the file a list of commands; commands for
        new media only stand in lists of their own below `format`. Default: none.
    environment: variables of every command that runs in the machine. EMBSTORE_DEVICE is the GPU
        that programs use; `emulated` is a GPU made of host memory. Default: none.
    pmem: where the persistent memory is. Default: nowhere.
    ssd: where the solid-state disk is. Default: there is none.
    stands_for: devices that the rates are modelled on. Default: none.
    on_demand: `pmemlab lab up` starts its container only if it is named. Default: false.
    """

    name: Text
    summary: Text
    proof: Annotated[Mapping[str, Any], Must("a mapping with names as keys", len)]
    guide: Text = ""
    requires: Requirements = field(default_factory=Requirements)
    cpus: Count = 1
    memory_bytes: Mib = 1 << 30
    backing_files: Mapping[str, Size] = field(default_factory=dict)
    machine_options: Text = ""
    cpu_options: Text = ""
    qemu: Texts = ()
    kernel_command_line: Text = ""
    provision: Annotated[tuple[ProvisionStep, ...], Parsed(_provision)] = ()
    environment: Mapping[str, Annotated[str, Must("text in quotes")]] = field(default_factory=dict)
    pmem: PersistentMemory = field(default_factory=PersistentMemory)
    ssd: SolidStateDisk | None = None
    stands_for: StandsFor = field(default_factory=StandsFor)
    on_demand: bool = False

    def check(self) -> None:
        _check(self)

    @property
    def gpu(self) -> str | None:
        """The GPU that programs use, or None if the topology names none."""
        return self.environment.get(GPU_VARIABLE)

    @property
    def keeps_media(self) -> bool:
        """Whether the machine has media that outlive a power cut, which are its backing files.

        RAM declared persistent on the kernel's command line does not outlive it: it is plain RAM.
        """
        return bool(self.backing_files)

    def provision_commands(self, *, new_media: bool) -> list[str]:
        """Returns the commands for a boot on new media, or on media that were used before."""
        return [step.command for step in self.provision if new_media or not step.formats]

    def to_yaml(self) -> str:
        """Returns the whole content of a file that describes this topology, without `like`."""
        import yaml

        content = content_of(self)
        if self.provision:
            content["provision"] = [
                {"format": [step.command]} if step.formats else step.command
                for step in self.provision
            ]
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def topology_names() -> list[str]:
    """Returns the names of the lab's own topologies, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_topology(name_or_path: str | Path) -> Topology:
    """Loads one of the lab's own topologies by name, or any topology by its file's path.

    Raises `TopologyError`, naming the file and the field.
    """
    path = Path(name_or_path)
    if path.suffix not in YAML_SUFFIXES:
        path = _FOLDER / f"{name_or_path}.yaml"
        if str(name_or_path) not in topology_names():
            raise TopologyError(
                f"topology: there is no {str(name_or_path)!r}; {_names_text()}, "
                "or give the path of a .yaml file"
            )
    file = _merged_with_like(File.from_yaml(path, TopologyError))
    topology = file.read(Topology)
    if topology.name != path.stem:
        raise file.error("name", f"is {topology.name!r}, but the file is called {path.name}")
    return topology


def _merged_with_like(file: File) -> File:
    """Returns the file, merged with the topology that its `like` names if it has a `like`."""
    if not isinstance(file.content, dict) or file.content.get("like") is None:
        return file
    own = dict(file.content)
    name = own["like"]
    if name not in topology_names():
        raise file.error("like", f"{name!r} is none of the lab's own; {_names_text()}")
    base = _merged_with_like(File.from_yaml(_FOLDER / f"{name}.yaml", TopologyError)).content
    taken_over = {key: value for key, value in base.items() if key not in ("name", "summary")}
    if isinstance(own.get("proof"), dict):
        proof = {**base["proof"], **own["proof"]}
        own["proof"] = {
            fact: value
            for fact, value in proof.items()
            if value is not None or fact not in base["proof"]
        }
    return replace(file, content=own).filled_from(taken_over)


def _names_text() -> str:
    return f"there are {', '.join(topology_names())}"


def _check(topology: Topology) -> None:
    _check_proof(topology)
    _check_proof_types(topology.proof)
    for name, value in topology.environment.items():
        if "\0" in value:
            raise FieldError(
                "has a zero byte, which no variable can; leave it out", f"environment.{name}"
            )
        if not name or {"=", "\0"} & {*name}:
            raise FieldError(
                "must be a variable's name, not empty and without `=`", f"environment.{name}"
            )
    for name in topology.environment.keys() & MISLEADING.keys():
        raise FieldError(
            f"{MISLEADING[name]}: nothing would be proved; leave it out", f"environment.{name}"
        )
    _check_stands_for(topology.stands_for)
    _check_quoting(topology)
    for name in topology.backing_files:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise FieldError(
                "must be a plain name, of letters, digits, - and _: it is a file in the machine's "
                "own folder",
                f"backing_files.{name}",
            )
    for index, argument in enumerate(topology.qemu):
        try:
            _check_template(argument, topology.backing_files)
        except ValueError as error:
            names = ", ".join(topology.backing_files) or "there are none"
            raise FieldError(
                f"{argument!r} can't be used ({error}); in braces there may be only the names "
                f"of backing_files: {names}",
                f"qemu[{index}]",
            ) from None


def _check_stands_for(devices: StandsFor) -> None:
    # Compares the files' names: loading the files needs the engine.
    known = sorted(path.stem for path in _DEVICES.glob("*.yaml"))
    for field_, name in vars(devices).items():
        is_path = "/" in name or name.endswith(YAML_SUFFIXES)
        if name and not is_path and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise FieldError(f"{name}: no device of this name; {hint}", f"stands_for.{field_}")


def _check_quoting(topology: Topology) -> None:
    """Raises FieldError if the kernel's command line has open quotes or a `--`."""
    try:
        words = shlex.split(topology.kernel_command_line)
    except ValueError as error:
        raise FieldError(f"{error}: close the quotes", "kernel_command_line") from None
    if "--" in words:
        raise FieldError("`--` would end the kernel's own; leave it out", "kernel_command_line")


def _check_proof(topology: Topology) -> None:
    proof = topology.proof
    for name, value in proof.items():
        if not is_fact_name(name):
            raise FieldError(str(UnknownFactError(name, [*FACTS])), f"proof.{name}")
        if value is None:
            raise FieldError("is empty: give the value that the fact must have", f"proof.{name}")
    _check_proof_of_nodes(topology)
    if topology.pmem.path is None or proof.get(_PLAIN_MEMORY) == 0:
        return
    missing = [
        f"{name}: {value}"
        for name, value in _PROOF_OF_DAX.items()
        if not (_names_regions(proof.get(name)) if name.endswith("s") else proof.get(name) is True)
    ]
    if missing:
        raise FieldError(
            f"must show that {topology.pmem.path} is on persistent memory; add "
            f"{'; '.join(missing)}. Where plain memory stands for it, say so: {_PLAIN_MEMORY}: 0",
            "proof",
        )


def _check_proof_types(proof: Mapping[str, Any]) -> None:
    for name, value in proof.items():
        error = shape_error(name, value)
        if error is not None:
            raise FieldError(f"{error}, not {value!r}: {fact_meaning(name)}", f"proof.{name}")


def _check_proof_of_nodes(topology: Topology) -> None:
    nodes, proof = topology.pmem.nodes, topology.proof
    if not nodes:
        return
    known = [_numbers(proof.get(name)) for name in ("nodes_without_cpus", "slow_nodes")]
    missing = []
    is_plain = proof.get(_PLAIN_NODES) == 0
    if not is_plain and not any(set(nodes) <= of_kind for of_kind in known):
        missing.append(f"nodes_without_cpus, or slow_nodes: {list(nodes)}")
    pages = _numbers(proof.get("memkind.page_nodes"))
    if not pages or not pages <= set(nodes):
        missing.append(f"memkind.page_nodes: {list(nodes)}")
    if missing:
        raise FieldError(
            f"must show where rows on {list(nodes)}, pmem's nodes, are, and that it is no plain "
            f"memory; add {'; '.join(missing)}. Where plain memory stands for it, say so: "
            f"{_PLAIN_NODES}: 0",
            "proof",
        )


def _numbers(value: object) -> set[int]:
    return {each for each in value if type(each) is int} if isinstance(value, list) else set()


def _names_regions(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(name) is str for name in value)


def _check_template(argument: str, names: Collection[str]) -> None:
    for _, name, how, conversion in Formatter().parse(argument):
        if name is not None and (name not in names or how or conversion):
            raise ValueError(f"{name + '!' * bool(conversion) + ':' * bool(how)} is no such name")
    shlex.split(argument)
