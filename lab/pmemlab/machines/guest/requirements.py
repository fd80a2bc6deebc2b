"""Checks whether this computer's QEMU and kernel are new enough for a topology."""

from __future__ import annotations

import re
import subprocess

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.topology import Topology

__all__ = ["qemu_version", "unmet_requirements"]

_REMEDY = "make backports (Debian 12), or name a newer one in "


def unmet_requirements(
    topology: Topology, qemu: str, release: str
) -> list[MissingRequirementError]:
    """Returns the topology's requirements that are not met here; empty if it can be tried.

    qemu: path of the program. release: of the guests' kernel, as `uname -r` prints it.
    """
    found = []
    if topology.requires.qemu:
        found.append(("QEMU", topology.requires.qemu, qemu_version(qemu), "PMEMLAB_QEMU"))
    if topology.requires.kernel:
        found.append(("a kernel", topology.requires.kernel, release, "PMEMLAB_KERNEL"))
    return [
        MissingRequirementError(
            f"machine {topology.name} wants {what} {least} or later; the one here is {version}",
            f"{_REMEDY}{variable}",
        )
        for what, least, version, variable in found
        if _numbers(version) < _numbers(least)
    ]


def qemu_version(qemu: str) -> str:
    """Returns a QEMU program's version, as "7.2.22". Raises `LabError` with QEMU's words."""
    done = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"version ([0-9.]+)", done.stdout)
    if done.returncode or match is None:
        raise LabError(f"{qemu} --version: {(done.stderr or done.stdout).strip()}")
    return match[1]


def _numbers(version: str) -> list[int]:
    """Returns the dotted numbers at the start of a version: "6.1.0-56-amd64" gives 6, 1, 0."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return [int(number) for number in match[0].split(".")] if match else []
