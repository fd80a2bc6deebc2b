"""Which kind of machine a scenario runs on, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pmemlab.machines.protocol import Kind
from pmemlab.scenario import Scenario
from pmemlab.topology import Topology

__all__ = ["Choice", "KindOrAuto", "MachineChooser", "unprovable"]

KindOrAuto = Literal["auto", "process", "guest", "container"]


@dataclass(frozen=True)
class Choice:
    """A kind of machine, and the reason in a few words."""

    kind: Kind
    why: str


@dataclass(frozen=True)
class _Containers:
    """What a Docker engine offers this clone: machines that run, and an image to start others."""

    running: frozenset[str]
    can_start: bool
    why_not_running: str
    why_not_started: str = ""


class MachineChooser:
    """Looks around at most once for each kind of machine, and only where it has to."""

    def __init__(self, requested: KindOrAuto, root: Path) -> None:
        """root: a folder of the clone whose lab may be running."""
        self._requested = requested
        self._root = root

    def choose(self, topology: Topology) -> Choice:
        """Return the first kind that runs here, best first; `process` always does."""
        if self._requested != "auto":
            return Choice(self._requested, "asked for by --machine")
        containers = self._containers
        if topology.name in containers.running:
            return Choice("container", "the lab is running")
        why = containers.why_not_running
        if containers.can_start:
            return Choice("container", f"{why}; Docker answers and has the image")
        why += f"; no container either: {containers.why_not_started}"
        if self._why_no_guest is None:
            return Choice("guest", why)
        return Choice("process", f"{why}; no guest: {self._why_no_guest}")

    def machines_at_a_time(self) -> int:
        """Two where machines are emulated on cores enough, else one.

        What is measured must not share the computer. Under TCG nothing is measured, and a guest
        keeps but one core busy.
        """
        return 1

    @cached_property
    def _containers(self) -> _Containers:
        raise NotImplementedError

    @cached_property
    def _why_no_guest(self) -> str | None:
        raise NotImplementedError


def unprovable(scenario: Scenario, kind: Kind) -> str | None:
    """Say what a machine of this kind can't prove of the scenario, or None where it can all.

    A process runs on this computer as it is, so it shows nothing about a topology that takes
    more than plain memory.
    """
    topology = scenario.topology
    emulated = (
        topology.qemu
        or topology.machine_options
        or topology.kernel_command_line
        or topology.provision
    )
    if kind == "process" and emulated:
        return (
            f"a process can't prove what {topology.name} says of its memory; "
            "a guest or a container can"
        )
    return None
