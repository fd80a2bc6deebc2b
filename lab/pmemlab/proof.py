"""The proof gate: what a machine's facts must be, and the document that says they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pmemlab.errors import LabError, Mismatch, ProofError
from pmemlab.machines.protocol import Accelerator
from pmemlab.topology import Topology

__all__ = ["Proof", "find_fact", "mismatches", "probe_command", "prove"]


@dataclass(frozen=True)
class Proof:
    """That a machine is what its topology says.

    facts: all that was read back from the machine.
    proved: the facts that the topology demands, each with the value found.
    seconds: what it took: "boot", "provision" and "proof".
    """

    topology: str
    accelerator: Accelerator
    facts: Mapping[str, object]
    proved: Mapping[str, object]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all: others wait for this file."""
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self), indent=1))
        part.rename(path)

    @staticmethod
    def read(path: Path) -> Proof:
        """Read one that `write` wrote. Raises `LabError`, naming the file."""
        try:
            return Proof(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise LabError(f"{path}: no proof can be read from it: {error}") from error


def probe_command(topology: Topology, python: str) -> list[str]:
    """The command that reads the facts, in a machine of this topology."""
    # -S: the probe needs nothing from site-packages, and a guest takes long to look there
    command = [python, "-S", "-m", "pmemlab.guest.probe"]
    if topology.pmem.path is not None:
        command += ["--path", topology.pmem.path]
    if topology.pmem.nodes:
        command += ["--memkind"]
    if topology.ssd is not None:
        command += ["--ssd", topology.ssd.path]
    return command


def find_fact(facts: Mapping[str, object], name: str) -> object:
    """A fact by its dotted name ("mount.dax", "regions.0.modes"); None where there is none."""
    value: Any = facts
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def mismatches(topology: Topology, facts: Mapping[str, object]) -> list[Mismatch]:
    """The facts that the topology demands and that do not hold."""
    found = ((name, value, find_fact(facts, name)) for name, value in topology.proof.items())
    # True == 1 in Python; a proof wants the very value
    return [
        Mismatch(name, expected, value)
        for name, expected, value in found
        if value != expected or type(value) is not type(expected)
    ]


def prove(topology: Topology, facts: Mapping[str, object]) -> dict[str, object]:
    """The demanded facts, each as found. Raises `ProofError` where one does not hold."""
    wrong = mismatches(topology, facts)
    if wrong:
        raise ProofError(topology.name, wrong, facts)
    return {name: find_fact(facts, name) for name in topology.proof}
