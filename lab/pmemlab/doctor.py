"""Diagnoses whether each kind of machine runs on this computer, and what is missing."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines import host, process
from pmemlab.machines.capacity import (
    EMULATOR_BYTES,
    free_memory_bytes,
    gibibytes_text,
    machine_bytes,
    max_parallel_machines,
    media_bytes,
)
from pmemlab.machines.guest import machine as guest
from pmemlab.machines.guest.accelerator import choose_accelerator
from pmemlab.machines.guest.kernel import cached_kernel, kernel_source
from pmemlab.machines.guest.probe import read_facts
from pmemlab.machines.guest.qemu import find_qemu
from pmemlab.machines.guest.requirements import unmet_requirements
from pmemlab.machines.guest.sandbox import sandbox_arguments
from pmemlab.machines.protocol import Kind
from pmemlab.topology import Topology, load_topology, topology_names

__all__ = ["Diagnosis", "diagnose", "diagnosis_table"]

_LIBRARIES = {
    "libleveldb.so.1d": "libleveldb1d",
    "libmemkind.so.0": "libmemkind0",
    "libpmem.so.1": "libpmem1",
}
# The image of about 2 GiB, its build stages, and the wheels fetched for it.
_IMAGE_BUILD_BYTES = 6 << 30


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one kind of machine.

    missing: requirements without which it does not run. partly_missing: of only some of its storage
        types or topologies. notes: further lines on what the machine runs with.
    """

    kind: Kind
    missing: tuple[MissingRequirementError, ...]
    partly_missing: tuple[MissingRequirementError, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        return not self.missing


def diagnose() -> list[Diagnosis]:
    """Diagnoses every kind of machine. Downloads nothing; may boot a guest to try KVM."""
    return [_process(), _host(), _guest(), _container()]


def diagnosis_table(diagnoses: Iterable[Diagnosis]) -> Table:
    table = Table("machine", "runs here", "what it has and lacks", "to get it")
    for diagnosis in diagnoses:
        lines = [*diagnosis.missing, *diagnosis.partly_missing]
        for number, (what, remedy) in enumerate(
            [*((note, "") for note in diagnosis.notes), *_missing_rows(lines)] or [("", "")]
        ):
            first = number == 0
            can_run = "[green]yes" if diagnosis.can_run else "[red]no"
            table.add_row(diagnosis.kind if first else "", can_run if first else "", what, remedy)
        table.add_section()
    return table


def _missing_rows(lines: Iterable[MissingRequirementError]) -> Iterable[tuple[str, str]]:
    return ((f"missing: {line.what}", line.remedy) for line in lines)


def _process() -> Diagnosis:
    missing = process.requirements(_largest_topology(lambda topology: topology.pmem.size_bytes))
    note = "no emulation: proves nothing of persistent memory"
    return Diagnosis("process", tuple(missing), tuple(_missing_libraries()), (note,))


def _host() -> Diagnosis:
    facts = read_facts(path=None, memkind=False)
    there_are = {
        "PMem regions": _names_in(facts, "regions"),
        "CXL devices": _names_in(facts, "cxl_memdevs"),
        "nodes without CPUs": _names_in(facts, "nodes_without_cpus"),
        "disks": _names_in(facts, "disks"),
    }
    notes = [
        "this computer's own media, where a topology of yours names and proves them",
        "; ".join(f"{what}: {names}" for what, names in there_are.items()),
    ]
    if (why := host.virtual_machine()) is not None:
        notes.append(f"measures DRAM alone: this computer is a virtual machine ({why})")
    return Diagnosis("host", (), tuple(_missing_libraries()), tuple(notes))


def _names_in(facts: Mapping[str, object], fact: str) -> str:
    """Returns the names or numbers that a fact lists, with commas between them."""
    listed = facts.get(fact)
    if not isinstance(listed, list):
        return "can't be read"
    return ", ".join(str(one["name"] if isinstance(one, dict) else one) for one in listed) or "none"


def _guest() -> Diagnosis:
    largest = _largest_topology(lambda topology: topology.memory_bytes)
    missing = guest.requirements(largest)
    libraries = tuple(_missing_libraries())
    one = largest.memory_bytes + EMULATOR_BYTES
    media = media_bytes(_largest_topology(media_bytes))
    folder = tempfile.gettempdir()
    at_once = max_parallel_machines()
    notes = [
        f"memory: {gibibytes_text(free_memory_bytes())} free; a machine takes up to "
        f"{gibibytes_text(one)}, "
        f"and scenarios run up to {at_once} at once: {gibibytes_text(one * at_once)}",
        f"disk: {gibibytes_text(shutil.disk_usage(folder).free)} free in {folder}; "
        f"a machine's media take up to {gibibytes_text(media)}",
    ]
    if missing:
        return Diagnosis("guest", tuple(missing), libraries, tuple(notes))
    kernel = cached_kernel()
    accelerator = (
        f"accelerator: {choose_accelerator(kernel, find_qemu()).upper()}"
        if kernel
        else "accelerator: KVM or TCG, found out at the first start"
    )
    sandbox = "on" if sandbox_arguments(find_qemu()) else "this QEMU has none that starts here"
    source = kernel_source()
    notes = [source.description, accelerator, f"QEMU's sandbox: {sandbox}", *notes]
    too_old = [
        missing
        for name in topology_names()
        for missing in unmet_requirements(load_topology(name), find_qemu(), source.release)
    ]
    return Diagnosis("guest", (), (*libraries, *_missing_cxl(), *too_old), tuple(notes))


def _container() -> Diagnosis:
    try:
        from pmemlab.machines.container import machine as container
        from pmemlab.machines.container.compose_command import compose_command
        from pmemlab.machines.container.connection import connect
    except ImportError as error:
        partly_missing = MissingRequirementError(f"the Python package {error.name}", "make lab-up")
        return Diagnosis("container", (partly_missing,))
    whole = sum(machine_bytes(load_topology(name)) for name in topology_names())
    memory = (
        f"memory: {gibibytes_text(free_memory_bytes())} free; "
        f"all of the lab takes up to {gibibytes_text(whole)}"
    )
    try:
        missing = container.requirements(_largest_topology(lambda topology: topology.memory_bytes))
        client = connect()
    except MissingRequirementError as error:
        return Diagnosis("container", (error,), (), (memory,))
    except LabError as error:
        wrong = MissingRequirementError(str(error), "see `docker context --help`")
        return Diagnosis("container", (wrong,), (), (memory,))
    lacking_compose: list[MissingRequirementError] = []
    try:
        compose_command()
    except MissingRequirementError as error:
        lacking_compose.append(error)
    except LabError as error:
        lacking_compose.append(MissingRequirementError(str(error), "make docker"))
    notes = [f"Docker {client.version()['Version']}", memory]
    storage = Path(str(client.info().get("DockerRootDir", "")))
    if storage.is_dir():  # the engine runs on this computer
        notes.append(
            f"disk: {gibibytes_text(shutil.disk_usage(storage).free)} free in {storage}; "
            f"building the image takes up to {gibibytes_text(_IMAGE_BUILD_BYTES)}"
        )
    return Diagnosis("container", tuple(missing), tuple(lacking_compose), tuple(notes))


def _largest_topology(size: Callable[[Topology], int]) -> Topology:
    """Returns that of the lab's own topologies for which `size` is largest."""
    return max((load_topology(name) for name in topology_names()), key=size)


def _missing_cxl() -> list[MissingRequirementError]:
    if shutil.which("cxl", path=guest.PROGRAM_PATH):
        return []
    what = "cxl, for the machines with CXL memory"
    return [MissingRequirementError(what, "apt-get install cxl, or ndctl of Debian 12")]


def _missing_libraries() -> list[MissingRequirementError]:
    missing = []
    for library, package in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(MissingRequirementError(library, f"apt-get install {package}"))
    return missing
