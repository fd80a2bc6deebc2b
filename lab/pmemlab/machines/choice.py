"""Chooses the kind of machine that a scenario runs on, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pmemlab.errors import LabError
from pmemlab.machines.container.clone import find_clone
from pmemlab.machines.guest import machine as guest
from pmemlab.machines.protocol import Kind, KindOrAuto
from pmemlab.topology import Topology

__all__ = ["Choice", "MachineChooser"]


@dataclass(frozen=True)
class Choice:
    """A kind of machine, and the reason for it in a few words.

    is_throwaway: whether the machine is a container for one run; False if unknown.
    """

    kind: Kind
    why: str
    is_throwaway: bool = False

    @property
    def is_private(self) -> bool:
        """Whether no other process waits for the machine."""
        return self.kind == "guest" or self.is_throwaway


class MachineChooser:
    """Asks each kind of machine, best first, what it lacks; takes the first that lacks nothing."""

    def __init__(self, requested: KindOrAuto, root: Path) -> None:
        """root: a folder of the clone whose lab may be running."""
        self._requested = requested
        self._root = root

    def choose(self, topology: Topology) -> Choice:
        """Returns the best kind that runs here; `process` always does.

        Best first: the running lab's container, a throwaway container, a guest, a process. A host
        writes to this computer's media, which are not the lab's, so only the user can choose it.
        """
        if self._requested != "auto":
            return Choice(self._requested, "asked for by --pmemlab-machine")
        why = self._why_no_container(topology)
        if why is None:
            if self._runs_in_the_lab(topology):
                return Choice("container", "it runs in this clone's lab")
            return Choice(
                "container", "a throwaway one, since the lab has none up", is_throwaway=True
            )
        missing = guest.requirements(topology)
        if not missing:
            return Choice("guest", why)
        return Choice("process", f"{why}; no guest: {'; '.join(map(str, missing))}")

    def _why_no_container(self, topology: Topology) -> str | None:
        try:
            from pmemlab.machines.container import machine as container

            missing = container.requirements(topology, self._root)
        except (LabError, ImportError) as error:
            return f"no container: {error}"
        return f"no container: {'; '.join(map(str, missing))}" if missing else None

    def _runs_in_the_lab(self, topology: Topology) -> bool:
        from pmemlab.machines.container import machine as container

        return container.runs_in_the_lab(topology, find_clone(self._root))
