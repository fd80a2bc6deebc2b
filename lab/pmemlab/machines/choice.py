"""Which kind of machine a scenario runs on, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pmemlab.clone import find_clone
from pmemlab.errors import LabError
from pmemlab.machines.protocol import Kind
from pmemlab.topology import Requirements, Topology, load_topology, topology_names

__all__ = ["Choice", "KindOrAuto", "MachineChooser"]

KindOrAuto = Literal["auto", "process", "guest", "container"]


@dataclass(frozen=True)
class Choice:
    """A kind of machine, and the reason in a few words."""

    kind: Kind
    why: str


class MachineChooser:
    """Looks around at most once for each kind of machine, and only where it has to."""

    def __init__(self, requested: KindOrAuto, root: Path) -> None:
        """root: a folder of the clone whose lab may be running."""
        self._requested = requested
        self._root = root

    def choose(self, topology: Topology) -> Choice:
        """Return the best kind that runs here; `process` always does.

        Best first: the running lab's container, a throwaway container, a guest, a process.
        """
        if self._requested != "auto":
            return Choice(self._requested, "asked for by --machine")
        containers = self._containers
        if not _is_the_labs_own(topology):
            why = f"{topology.name} is no topology of the lab's own, which containers run"
        elif topology.requires != Requirements():
            why = "containers have the distribution's own QEMU and kernel, which may be too old"
        elif isinstance(containers, str):
            why = f"no container: {containers}"
        elif topology.name in containers:
            return Choice("container", "it runs in this clone's lab")
        else:
            return Choice("container", "a throwaway one, since the lab has none up")
        missing = self._why_no_guest or _why_not_this_guest(topology)
        if not missing:
            return Choice("guest", why)
        return Choice("process", f"{why}; no guest: {missing}")

    @cached_property
    def _containers(self) -> frozenset[str] | str:
        """Topologies whose container runs; or why there can't be a container."""
        try:
            from pmemlab.container_engine.connection import connect
            from pmemlab.machines.container import require_image, running_machines

            clone = find_clone(self._root)
            require_image(connect(), clone)
            return running_machines(clone)
        except (LabError, ImportError) as error:
            return str(error)

    @cached_property
    def _why_no_guest(self) -> str | None:
        from pmemlab.doctor import missing_for_guest

        return "; ".join(str(missing) for missing in missing_for_guest()) or None


def _why_not_this_guest(topology: Topology) -> str:
    from pmemlab.doctor import missing_for_topology

    return "; ".join(map(str, missing_for_topology(topology)))


def _is_the_labs_own(topology: Topology) -> bool:
    return topology.name in topology_names() and topology == load_topology(topology.name)
