"""Starts a machine of any kind."""

from __future__ import annotations

from collections.abc import Callable

from pmemlab.machines.protocol import KINDS, Booting, Kind, Machine
from pmemlab.topology import Topology, load_topology

__all__ = ["open_machine"]


def open_machine(
    topology: Topology | str,
    kind: Kind,
    on_step: Callable[[str], None] = lambda _: None,
    on_boot: Callable[[Booting], None] = lambda _: None,
) -> Machine:
    """Starts a machine and proves it.

    topology: an object, or the name of one of the lab's own, or the path of a file.
    on_step: gets the current step if it takes a while.
    on_boot: gets a guest, or a container of its own, just before it boots.
    Raises `LabError` if the machine can't be started or isn't what its topology says.
    """
    if isinstance(topology, str):
        topology = load_topology(topology)
    # Imports a kind's own requirements (QEMU, Docker) only for that kind.
    if kind == "process":
        from pmemlab.machines.process import open_process_machine

        return open_process_machine(topology)
    if kind == "host":
        from pmemlab.machines.host import open_host_machine

        return open_host_machine(topology)
    if kind == "guest":
        from pmemlab.machines.guest.machine import open_guest_machine

        return open_guest_machine(topology, on_step=on_step, on_boot=on_boot)
    if kind == "container":
        from pmemlab.machines.container.machine import open_container_machine

        return open_container_machine(topology, on_step=on_step, on_boot=on_boot)
    raise ValueError(f"kind: {kind!r} is none of {', '.join(KINDS)}")
