"""Topologies: YAML files that state a machine once.

A file says what QEMU is given, what is then run in the guest, where the persistent memory is to
be found afterwards, and which facts must hold before anyone may use the machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pmemlab.errors import TopologyError

__all__ = [
    "PersistentMemory",
    "SolidStateDisk",
    "Topology",
    "load_topology",
    "parse_size",
    "topology_names",
]

_FOLDER = Path(__file__).parent / "topologies"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
class Topology:
    """One emulated machine.

    name: the file's stem. Required.
    summary: one line for people. Required.
    proof: what must hold, fact -> value, facts as `pmemlab.guest.probe` names them, with dots
        between levels ("mount.dax: true"). Required: a machine that proves nothing is refused.
    guide: the mode's name in DeepRec's guide "Embedding on PMEM". Default: "".
    cpus: virtual CPUs. Default: 1, with which QEMU's TCG needs no atomics: a third less work.
    memory_bytes: RAM at boot (`memory` in the file). Default: 1G.
    backing_files: name -> bytes; sparse files that are the DIMMs' and disks' media. QEMU
        arguments refer to one by "{name}". Default: none.
    machine_options: added to QEMU's `-machine q35`. Default: "".
    qemu: further QEMU arguments, as on a command line. Default: none.
    kernel_command_line: added to the kernel's command line. Default: "".
    provision: shell commands, run in the guest as root in this order. Default: none.
    environment: of every command that is run in the machine. Default: none.
    pmem: where the persistent memory is. Default: nowhere.
    ssd: where the solid-state disk is. Default: there is none.
    """

    name: str
    summary: str
    proof: Mapping[str, object]
    guide: str = ""
    cpus: int = 1
    memory_bytes: int = 1 << 30
    backing_files: Mapping[str, int] = field(default_factory=dict)
    machine_options: str = ""
    qemu: tuple[str, ...] = ()
    kernel_command_line: str = ""
    provision: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pmem: PersistentMemory = field(default_factory=PersistentMemory)
    ssd: SolidStateDisk | None = None


def topology_names() -> list[str]:
    """Names of the lab's own topologies, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_topology(name_or_path: str | Path) -> Topology:
    """Load one of the lab's own topologies by name, or any by its file's path.

    Raises `TopologyError`, naming the file and the field.
    """
    import yaml  # only here: programs in the machines import this package and load no topology

    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = _FOLDER / f"{name_or_path}.yaml"
        if not path.is_file():
            raise TopologyError(
                f"topology: there is no {str(name_or_path)!r}; "
                f"there are {', '.join(topology_names())}, or give the path of a .yaml file"
            )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path}: can't be read: {error}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TopologyError(f"{path}: not YAML: {error}") from error
    return _Reader(path, document).topology()


def parse_size(text: object) -> int:
    """Bytes of "512M", "1G", "4096" or 4096 (binary units). Raises ValueError."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = re.fullmatch(r"([1-9][0-9]*)([KMGT]?)", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no size: give bytes, or a number with K, M, G or T")
    return int(match[1]) * _UNITS[match[2]]


class _Reader:
    """Reads one document, so that every error can name the file and the field."""

    def __init__(self, path: Path, document: object) -> None:
        self._path = path
        if not isinstance(document, dict):
            raise TopologyError(f"{path}: must be a mapping of fields, like the lab's own files")
        self._fields: dict[str, Any] = dict(document)

    def topology(self) -> Topology:
        name = self._text("name", required=True)
        if name != self._path.stem:
            raise self._error("name", f"is {name!r}, but the file is called {self._path.name}")
        topology = Topology(
            name=name,
            summary=self._text("summary", required=True),
            proof=self._mapping("proof", required=True),
            guide=self._text("guide"),
            cpus=self._positive("cpus", Topology.cpus),
            memory_bytes=self._size("memory", Topology.memory_bytes),
            backing_files={
                key: self._bytes(f"backing_files.{key}", value)
                for key, value in self._mapping("backing_files").items()
            },
            machine_options=self._text("machine_options"),
            qemu=self._texts("qemu"),
            kernel_command_line=self._text("kernel_command_line"),
            provision=self._texts("provision"),
            environment=self._environment(),
            pmem=self._pmem(),
            ssd=self._ssd(),
        )
        if self._fields:
            known = ", ".join(f.name.removesuffix("_bytes") for f in fields(Topology))
            name = str(next(iter(self._fields)))
            raise self._error(name, f"is no field of a topology; there are {known}")
        self._check_qemu(topology)
        return topology

    def _error(self, name: str, problem: str) -> TopologyError:
        return TopologyError(f"{self._path}: {name}: {problem}")

    def _take(self, name: str, required: bool = False) -> object:
        if required and name not in self._fields:
            raise self._error(name, "is missing")
        return self._fields.pop(name, None)

    def _text(self, name: str, required: bool = False) -> str:
        value = self._take(name, required)
        if value is None:
            return ""
        if not isinstance(value, str) or not value.strip():
            raise self._error(name, f"must be text, not {value!r}")
        return " ".join(value.split())

    def _texts(self, name: str) -> tuple[str, ...]:
        value = self._take(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(name, f"must be a list of texts, not {value!r}")
        return tuple(value)

    def _mapping(self, name: str, required: bool = False) -> dict[str, Any]:
        value = self._take(name, required)
        if value is None and not required:
            return {}
        if not isinstance(value, dict) or not value or not all(isinstance(k, str) for k in value):
            raise self._error(name, f"must be a mapping with names as keys, not {value!r}")
        return value

    def _positive(self, name: str, default: int) -> int:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._error(name, f"must be a number above 0, not {value!r}")
        return value

    def _size(self, name: str, default: int) -> int:
        value = self._take(name)
        return default if value is None else self._bytes(name, value)

    def _bytes(self, name: str, value: object) -> int:
        try:
            return parse_size(value)
        except ValueError as error:
            raise self._error(name, str(error)) from None

    def _environment(self) -> dict[str, str]:
        environment = self._mapping("environment")
        for key, value in environment.items():
            if not isinstance(value, str):
                raise self._error(f"environment.{key}", f"must be text in quotes, not {value!r}")
        return environment

    def _pmem(self) -> PersistentMemory:
        value = self._mapping("pmem")
        unknown = set(value) - {"path", "nodes", "size"}
        if unknown:
            raise self._error(f"pmem.{sorted(unknown)[0]}", "there are path, nodes and size")
        if not value:
            return PersistentMemory()
        path, nodes = value.get("path"), value.get("nodes", [])
        if path is not None and not (isinstance(path, str) and path.startswith("/")):
            raise self._error("pmem.path", f"must be an absolute path, not {path!r}")
        if not isinstance(nodes, list) or not all(type(n) is int and n >= 0 for n in nodes):
            raise self._error("pmem.nodes", f"must be a list of node numbers, not {nodes!r}")
        if path is None and not nodes:
            raise self._error("pmem", "must have a path or nodes")
        if "size" not in value:
            raise self._error("pmem.size", "is missing")
        return PersistentMemory(path, tuple(nodes), self._bytes("pmem.size", value["size"]))

    def _ssd(self) -> SolidStateDisk | None:
        value = self._mapping("ssd")
        unknown = set(value) - {"path"}
        if unknown:
            raise self._error(f"ssd.{sorted(unknown)[0]}", "there is path, no more")
        if not value:
            return None
        path = value["path"]
        if not (isinstance(path, str) and path.startswith("/")):
            raise self._error("ssd.path", f"must be an absolute path, not {path!r}")
        return SolidStateDisk(path)

    def _check_qemu(self, topology: Topology) -> None:
        names = {name: f"/{name}" for name in topology.backing_files}
        for index, argument in enumerate(topology.qemu):
            try:
                shlex.split(argument.format(**names))
            except (KeyError, IndexError, ValueError) as error:
                raise self._error(
                    f"qemu[{index}]",
                    f"{argument!r} can't be used ({error}); in braces there may be only the names "
                    f"of backing_files: {', '.join(names) or 'there are none'}",
                ) from None
