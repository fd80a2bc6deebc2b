"""The user's changes to one guest, in addition to its topology."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from pmemlab.errors import LabError
from pmemlab.machines.guest.shares import Share, is_shareable
from pmemlab.topology import Topology

__all__ = ["RESULTS", "RESULTS_TAG", "GuestOptions", "parse_qemu_arguments"]

RESULTS = "/mnt/results"
"""The guest's path of the folder that it may write."""

RESULTS_TAG = "results"


@dataclass(frozen=True)
class GuestOptions:
    """Changes to a topology for one guest.

    cpus: virtual CPUs. Default: the topology's.
    qemu_arguments: further QEMU arguments. Default: none. They may change any fact, so a guest that
        has some is opened even if a fact differs from the topology's demands.
    results: a folder of this computer that the guest may write, at `RESULTS`. Default: none.
    """

    cpus: int | None = None
    qemu_arguments: tuple[str, ...] = ()
    results: Path | None = None

    def applied_to(self, topology: Topology) -> Topology:
        """Returns the topology with these options, and with the proof that such a guest must pass.

        Raises `LabError` if the topology places its CPUs in sockets itself.
        """
        if self.cpus is None or self.cpus == topology.cpus:
            return topology
        if any(shlex.split(argument)[0] == "-smp" for argument in topology.qemu):
            raise LabError(
                f"--cpus {self.cpus}: {topology.name} has {topology.cpus} CPUs, each in its place "
                "(`-smp` in its topology); write a topology of your own with other CPUs"
            )
        proof = dict(topology.proof)
        if "cpus" in proof:
            proof["cpus"] = list(range(self.cpus))
        return replace(topology, cpus=self.cpus, proof=proof)

    def results_share(self) -> Share | None:
        """Returns the share of `results`. Raises `LabError` if it can't be written."""
        if self.results is None:
            return None
        folder = self.results.absolute()
        if not folder.is_dir():
            raise LabError(f"--share {self.results}: there is no such folder; make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise LabError(f"--share {self.results}: you may not write there")
        if not is_shareable(folder):
            raise LabError(f"--share {self.results}: a line break in its path can't be passed on")
        return Share(RESULTS_TAG, folder, writable=True)


def parse_qemu_arguments(text: str) -> tuple[str, ...]:
    """Splits a text into words as a shell does. Raises `LabError`."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise LabError(f"--qemu-arguments {text!r}: {error}") from None
