"""Reads a machine's facts with a command in the machine."""

from __future__ import annotations

import json
from typing import Any

from pmemlab.errors import LabError
from pmemlab.machines.protocol import Machine
from pmemlab.proof import probe_command

__all__ = ["CRASH_STACKS_ENVIRONMENT", "read_facts"]

CRASH_STACKS_ENVIRONMENT = {"PYTHONFAULTHANDLER": "1"}
"""Environment that makes a command show its stacks when it crashes or is aborted. All of the lab's
commands have it, so one prepared process serves them."""

_PROBE_LIMIT_S = 180.0  # emulated machines that start together share the cores


def read_facts(machine: Machine) -> dict[str, Any]:
    """Returns the machine's current facts. Raises `LabError` if they can't be read."""
    machine_name = f"{machine.kind} {machine.topology.name}"
    command = probe_command(machine.topology, machine.python)
    done = machine.run(command, env=CRASH_STACKS_ENVIRONMENT, timeout=_PROBE_LIMIT_S)
    if done.returncode:
        raise LabError(f"{machine_name}: its facts can't be read: {done.stderr}")
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LabError(f"{machine_name}: its probe printed no facts: {done.stdout!r}") from None
    return facts
