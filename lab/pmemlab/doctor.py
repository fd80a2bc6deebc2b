"""Whether each kind of machine runs on this computer, and what is missing where it doesn't."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.guest.accelerator import choose_accelerator
from pmemlab.guest.initramfs import find_busybox
from pmemlab.guest.kernel import cached_kernel, kernel_release, kernel_source
from pmemlab.guest.qemu import find_qemu, find_setpriv
from pmemlab.guest.requirements import unmet_requirements
from pmemlab.machines.protocol import Kind
from pmemlab.topology import Topology, load_topology, topology_names

__all__ = ["Diagnosis", "diagnose", "diagnosis_table", "missing_for_guest", "missing_for_topology"]

# Programs of the topologies' provisioning and of `pmemlab show`, with the packages that have them.
# A guest's root is this computer's, so they must be here.
_GUEST_PROGRAMS = {
    "ndctl": "ndctl",
    "daxctl": "daxctl",
    "numactl": "numactl",
    "mkfs.ext4": "e2fsprogs",
    "dmsetup": "dmsetup",
}
_LIBRARIES = {
    "libleveldb.so.1d": "libleveldb1d",
    "libmemkind.so.0": "libmemkind0",
    "libpmem.so.1": "libpmem1",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Diagnosis:
    """Of one kind of machine. missing: what keeps it from running, each with its remedy.

    lacking: what only some of its storage types or topologies want. notes: what it runs with.
    """

    kind: Kind
    missing: tuple[MissingRequirementError, ...]
    lacking: tuple[MissingRequirementError, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return not self.missing


def diagnose() -> list[Diagnosis]:
    """Every kind of machine. Downloads nothing; may boot a guest for seconds to try KVM."""
    return [_process(), _guest(), _container()]


def diagnosis_table(diagnoses: Iterable[Diagnosis]) -> Table:
    table = Table("machine", "runs here", "what it has and lacks", "to get it")
    for diagnosis in diagnoses:
        lines = [*diagnosis.missing, *diagnosis.lacking]
        table.add_row(
            diagnosis.kind,
            "[green]yes" if diagnosis.runs else "[red]no",
            "\n".join([*diagnosis.notes, *(f"missing: {line.what}" for line in lines)]),
            "\n".join([*("" for _ in diagnosis.notes), *(line.remedy for line in lines)]),
            end_section=True,
        )
    return table


def missing_for_guest() -> list[MissingRequirementError]:
    """What keeps guests from running here; empty where they do."""
    checks = [find_qemu, find_setpriv, find_busybox, kernel_source]
    programs = [
        MissingRequirementError(program, f"apt-get install {package}")
        for program, package in _GUEST_PROGRAMS.items()
        if not shutil.which(program, path=_SYSTEM_PATH)
    ]
    return [*_failures(checks), *programs]


def missing_for_topology(topology: Topology) -> list[MissingRequirementError]:
    """What keeps this machine from running as a guest, where others do."""
    return unmet_requirements(topology, find_qemu(), kernel_release())


def _process() -> Diagnosis:
    missing = []
    if not Path("/dev/shm").is_dir():
        missing.append(MissingRequirementError("/dev/shm", "mount -t tmpfs tmpfs /dev/shm"))
    note = "no emulation: proves nothing of persistent memory"
    return Diagnosis("process", tuple(missing), tuple(_missing_libraries()), (note,))


def _guest() -> Diagnosis:
    missing = missing_for_guest()
    if missing:
        return Diagnosis("guest", tuple(missing), tuple(_missing_libraries()))
    kernel = cached_kernel()
    accelerator = (
        f"accelerator: {choose_accelerator(kernel, find_qemu()).upper()}"
        if kernel
        else "accelerator: KVM or TCG, found out at the first start"
    )
    notes = (kernel_source(), accelerator)
    too_old = [
        missing
        for name in topology_names()
        for missing in missing_for_topology(load_topology(name))
    ]
    return Diagnosis("guest", (), (*_missing_libraries(), *_missing_cxl(), *too_old), notes)


def _container() -> Diagnosis:
    from pmemlab.clone import find_clone
    from pmemlab.container_engine.compose_command import find_compose
    from pmemlab.container_engine.connection import connect
    from pmemlab.container_engine.image import current_image

    try:
        clone = find_clone()
        client = connect()
        image = current_image(client, clone)
        find_compose(clone, image or "")
    except MissingRequirementError as error:
        return Diagnosis("container", (error,))
    except LabError as error:
        return Diagnosis("container", (MissingRequirementError(str(error), "git clone"),))
    note = f"image {image}" if image else "no image of these sources yet: `make lab-up` builds it"
    return Diagnosis("container", (), (), (f"Docker {client.version()['Version']}", note))


def _missing_cxl() -> list[MissingRequirementError]:
    if shutil.which("cxl", path=_SYSTEM_PATH):
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


def _failures(checks: Iterable[Callable[[], object]]) -> list[MissingRequirementError]:
    failures = []
    for check in checks:
        try:
            check()
        except MissingRequirementError as error:
            failures.append(error)
    return failures
