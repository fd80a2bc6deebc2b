"""The `host` machine: this computer, with the media that the topology names.

The machine is for real persistent memory, CXL memory and disks, which the user has provisioned: the
topology's `provision` and its fields for QEMU are ignored. The machine uses `pmem.path`,
`pmem.nodes` and `ssd.path` as they are named. Its files lie in a new folder below each path, which
is removed when the machine is stopped. A computer that isn't what its topology says is refused, as
a guest is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pmemlab.errors import LabError, ProofError
from pmemlab.machines.capacity import missing_space
from pmemlab.machines.process import ProcessMachine
from pmemlab.machines.protocol import Kind
from pmemlab.proof import mismatches
from pmemlab.topology import Topology

__all__ = ["HostMachine", "open_host_machine", "virtual_machine"]

_NODES: Final = Path("/sys/devices/system/node")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_VENDOR: Final = Path("/sys/class/dmi/id/sys_vendor")
_EMULATORS: Final = ("QEMU", "Bochs", "KVM")

_OWN_TOPOLOGY: Final = (
    "A topology of the lab describes a guest; for the host machine write one of your own, with "
    "this computer's paths and nodes and what proves its media "
    '(lab/docs/own-hardware.md, "Your own hardware")'
)


def open_host_machine(topology: Topology) -> HostMachine:
    """Returns this computer, proved to have the media that the topology names.

    Raises LabError if a path or node isn't there, before anything runs, and ProofError if the media
    aren't what the topology says.
    """
    machine = HostMachine(topology)
    machine.open()
    return machine


class HostMachine(ProcessMachine):
    """Runs commands as children of this process, on the topology's own media.

    `topology` is the requested one, with the folders that were made at its paths.
    """

    kind: Kind = "host"

    def _place(self, topology: Topology) -> Topology:
        pmem, ssd = topology.pmem, topology.ssd
        # Checks everything first: nothing is made on one medium if another is missing.
        pmem_path = _folder(topology, "pmem.path", pmem.path) if pmem.path else None
        ssd_path = _folder(topology, "ssd.path", ssd.path) if ssd else None
        for node in pmem.nodes:
            if not (_NODES / f"node{node}").is_dir():
                raise _missing_medium_error(
                    topology, f"pmem.nodes: this computer has no NUMA node {node}"
                )
        if pmem_path is not None:
            purpose = f"pmem.size of topology {topology.name}"
            remedy = "free some, or say less"
            for missing in missing_space(pmem_path, pmem.size_bytes, purpose, remedy):
                raise missing
            pmem = replace(pmem, path=self._folder_in(pmem_path))
        if ssd is not None and ssd_path is not None:
            ssd = replace(ssd, path=self._folder_in(ssd_path))
        return replace(topology, pmem=pmem, ssd=ssd)

    def _folder_in(self, parent: Path) -> str:
        try:
            return super()._folder_in(parent)
        except OSError as error:
            raise LabError(
                f"topology {self.topology.name}: no folder can be made in {parent}: "
                f"{error.strerror}; run as a user who may write there"
            ) from error

    def _unproved(self, facts: dict[str, object]) -> list[str]:
        """Returns nothing. Raises ProofError if a fact does not hold, LabError if `ssd.path` is on
        no disk.
        """
        wrong = mismatches(self.topology, facts)
        if wrong:
            raise ProofError(self.topology.name, wrong, facts, _OWN_TOPOLOGY)
        ssd = facts.get("ssd")
        if isinstance(ssd, Mapping) and "block_devices" not in ssd:
            raise LabError(
                f"topology {self.topology.name}: ssd.path: is on {ssd.get('device')} "
                f"({ssd.get('filesystem')}), which is no disk; name a folder on one"
            )
        facts["virtual_machine"] = virtual_machine()
        return []


def _folder(topology: Topology, field: str, named: str) -> Path:
    path = Path(named)
    if not path.is_dir():
        raise _missing_medium_error(topology, f"{field}: {path} is no folder on this computer")
    return path


def _missing_medium_error(topology: Topology, problem: str) -> LabError:
    return LabError(
        f"topology {topology.name} ({topology.name}.yaml): {problem}. The host machine runs "
        "nothing of `provision`: set the medium up first (ndctl, mkfs, mount, daxctl), and give "
        "the path or node that it has here. " + _OWN_TOPOLOGY
    )


def virtual_machine() -> str | None:
    """Returns the evidence that this computer is a virtual machine; None if there is none.

    Media of a virtual machine may be files and memory of the computer below it.
    """
    if _VENDOR.is_file() and _VENDOR.read_text().strip() in _EMULATORS:
        return f"its vendor is {_VENDOR.read_text().strip()}"
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.is_file() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return "its CPU says hypervisor" if "hypervisor" in flags.split() else None
