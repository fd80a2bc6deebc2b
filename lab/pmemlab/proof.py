"""The proof gate: reads a machine's facts, checks them against its topology, keeps the evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pmemlab.errors import LabError, Mismatch, MissingFactError, ProofError, UnknownFactError
from pmemlab.machines.guest.fact_names import FACTS, is_fact_name
from pmemlab.machines.protocol import CRASH_STACKS_ENVIRONMENT, Accelerator, Machine
from pmemlab.topology import Topology
from pmemlab.whole_file import write_whole

__all__ = ["Proof", "find_fact", "mismatches", "probe_command", "prove", "read_facts"]

_PROBE_LIMIT_S = 180.0  # emulated machines that start together share the cores


@dataclass(frozen=True)
class Proof:
    """Evidence that a machine is what its topology says.

    facts: all facts read back from the machine.
    proved: the facts that the topology demands, each with the value found.
    seconds: the durations of "boot", "provision" and "proof".
    """

    topology: str
    accelerator: Accelerator
    facts: Mapping[str, object]
    proved: Mapping[str, object]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the proof as JSON, whole or not at all: other processes wait for this file."""
        write_whole(path, json.dumps(asdict(self), indent=1))


def probe_command(topology: Topology, python: str) -> list[str]:
    """Returns the command that reads the facts in a machine of this topology."""
    # -S: the probe needs nothing from site-packages, and a guest takes long to look there.
    command = [python, "-S", "-m", "pmemlab.machines.guest.probe"]
    if topology.pmem.path is not None:
        command += ["--path", topology.pmem.path]
    if topology.pmem.nodes:
        command += ["--memkind"]
    if topology.ssd is not None:
        command += ["--ssd", topology.ssd.path]
    return command


def read_facts(machine: Machine) -> dict[str, Any]:
    """Returns the machine's current facts. Raises `LabError` if they can't be read."""
    command = probe_command(machine.topology, machine.python)
    done = machine.run(command, env=CRASH_STACKS_ENVIRONMENT, timeout=_PROBE_LIMIT_S)
    machine_name = f"{machine.kind} {machine.topology.name}"
    if done.returncode:
        raise LabError(f"{machine_name}: its facts can't be read: {done.stderr}")
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LabError(f"{machine_name}: its probe printed no facts: {done.stdout!r}") from None
    return facts


def find_fact(facts: Mapping[str, object], name: str) -> object:
    """Returns a fact by its dotted name: "mount.dax", "regions.0.modes".

    A star stands for every item of a list, in order: "regions.*.modes" gives a list of their modes.

    Raises `UnknownFactError` if the probe knows no such name, `MissingFactError` if the machine has
    no such fact or it could not be read.
    """
    if not is_fact_name(name):
        raise UnknownFactError(name, [*FACTS])
    reasons = facts.get("unreadable")
    return _find(facts, name.split("."), "", reasons if isinstance(reasons, Mapping) else {})


def _find(value: object, parts: Sequence[str], at: str, reasons: Mapping[str, str]) -> object:
    """Returns the value at the path `parts` below `value`; `at` is the name of `value`."""
    if at in reasons:
        raise MissingFactError(at, "unreadable", reasons[at])
    if not parts:
        return value
    part, rest = parts[0], parts[1:]
    if part == "*" and isinstance(value, list):
        return [_find(one, rest, f"{at}.{i}", reasons) for i, one in enumerate(value)]
    below = f"{at}.{part}".lstrip(".")
    if isinstance(value, Mapping) and part in value:
        return _find(value[part], rest, below, reasons)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return _find(value[int(part)], rest, below, reasons)
    if below in reasons:
        raise MissingFactError(below, "unreadable", reasons[below])
    if isinstance(value, list):
        raise MissingFactError(below, "absent", f"{at} has {len(value)} items")
    raise MissingFactError(below, "absent", f"the machine has no {below}")


def mismatches(topology: Topology, facts: Mapping[str, object]) -> list[Mismatch]:
    """Returns the facts that the topology demands and that do not hold, `pmem.size` included.

    Raises `UnknownFactError` if the topology demands a fact that the probe does not know.
    """
    wrong = []
    for name, expected in topology.proof.items():
        try:
            found = find_fact(facts, name)
        except MissingFactError as error:
            wrong.append(Mismatch(name, expected, None, error.kind, error.why))
        else:
            if not _is_same(found, expected):
                wrong.append(Mismatch(name, expected, found))
    return [*wrong, *_lacking_bytes(topology, facts)]


def _lacking_bytes(topology: Topology, facts: Mapping[str, object]) -> Iterator[Mismatch]:
    """Yields a mismatch if the persistent memory is smaller than the topology's `pmem.size`."""
    pmem, mount, nodes = topology.pmem, facts.get("mount"), facts.get("node_bytes")
    sizes = {}
    if pmem.path is not None and isinstance(mount, Mapping) and "bytes" in mount:
        sizes["mount.bytes"] = mount["bytes"]
    if pmem.nodes and isinstance(nodes, Mapping):
        sizes["node_bytes"] = sum(nodes.get(str(node), 0) for node in pmem.nodes)
    for name, found in sizes.items():
        if found < pmem.size_bytes:
            expected = f"at least {pmem.size_bytes}, the topology's pmem.size"
            yield Mismatch(name, expected, found)


def _is_same(found: object, expected: object) -> bool:
    """Returns whether the values and their types are equal at every depth (True == 1 in Python)."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_is_same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            _is_same(found[k], expected[k]) for k in found
        )
    return found == expected


def prove(topology: Topology, facts: Mapping[str, object]) -> dict[str, object]:
    """Returns the demanded facts as found. Raises `ProofError` if one does not hold."""
    wrong = mismatches(topology, facts)
    if wrong:
        raise ProofError(topology.name, wrong, facts)
    return {name: find_fact(facts, name) for name in topology.proof}
