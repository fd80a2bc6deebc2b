"""The facts of every machine, recorded from real guests.

`python tests/lab/recorded_facts.py [NAME ...]` records them again. Run it after a topology, or the
list of facts that the probe reads, has changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmemlab.errors import ProofError
from pmemlab.machines.guest.machine import open_guest_machine
from pmemlab.topology import load_topology, topology_names

__all__ = ["recorded_facts", "recorded_names"]

_FOLDER = Path(__file__).parent / "facts"


def recorded_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def recorded_facts(name: str) -> dict[str, Any]:
    """Returns a new copy of a machine's facts, which the caller may change."""
    facts: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return facts


def _record(names: Sequence[str]) -> int:
    """Records these machines, or all. Returns 1 if a machine was not what its topology says."""
    failed = False
    for name in names or topology_names():
        try:
            with open_guest_machine(load_topology(name)) as machine:
                facts: Mapping[str, object] = machine.facts()
        except ProofError as error:  # lets the author of a new topology see its facts
            facts, failed = error.facts, True
            print(error, file=sys.stderr)
        (_FOLDER / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        print(f"{name}: recorded")
    return int(failed)


if __name__ == "__main__":
    sys.exit(_record(sys.argv[1:]))
