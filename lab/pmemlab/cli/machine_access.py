"""Finds the machine that the user named, for a command."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pmemlab.cli.messages import messages
from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.protocol import Machine, Spawner
from pmemlab.topology import Topology, load_topology

if TYPE_CHECKING:
    from docker.models.containers import Container

    from pmemlab.machines.guest.machine import GuestMachine
    from pmemlab.machines.guest.options import GuestOptions

__all__ = [
    "add_guest_options",
    "environment",
    "guest_options",
    "print_script",
    "running_machine_names",
    "running_machine_or_new_guest",
    "runs_in_the_lab",
    "spawner",
]


def add_guest_options(command: argparse.ArgumentParser) -> None:
    guest = command.add_argument_group(
        "guest", "each option starts a new guest, even if the lab runs the machine"
    )
    guest.add_argument(
        "--kernel",
        metavar="VERSION|PATH",
        help="a version in /boot, a FOLDER/boot/vmlinuz-VERSION, or a FOLDER with boot and lib",
    )
    guest.add_argument("--cpus", type=int, metavar="N", help="virtual CPUs")
    guest.add_argument("--qemu-arguments", metavar="TEXT", help="further QEMU arguments, one text")
    guest.add_argument(
        "--share",
        type=Path,
        metavar="FOLDER",
        help="folder that the guest may write at /mnt/results",
    )
    guest.add_argument(
        "--dry-run", action="store_true", help="print the commands that would start the guest"
    )


@contextlib.contextmanager
def spawner(arguments: argparse.Namespace, options: GuestOptions | None) -> Iterator[Spawner]:
    """Yields the guest of --state-dir, else the machine of `running_machine_or_new_guest`."""
    if arguments.state_dir is None:
        with running_machine_or_new_guest(arguments.machine, options) as machine:
            yield machine
        return
    from pmemlab.machines.guest.control import attach

    with attach(arguments.state_dir) as link:
        yield link


@contextlib.contextmanager
def running_machine_or_new_guest(
    name: str, options: GuestOptions | None = None
) -> Iterator[Machine]:
    """Yields the running lab's machine of that name, else a guest that lives as long as the
    context.

    With options, always starts a new guest.
    """
    topology = load_topology(name)
    if options is None and _runs_in_lab_or_warns(topology):
        from pmemlab.machines.container.machine import open_container_machine

        # A user may look at a machine that a run has leased.
        with open_container_machine(topology, leased=False) as machine:
            yield machine
        return
    with _new_guest(topology, options) as guest:
        yield guest


def running_machine_names() -> frozenset[str]:
    """Returns the names of the machines that run in the clone's lab."""
    try:
        from pmemlab.machines.container.machine import running_machines

        return running_machines()
    except MissingRequirementError:
        return frozenset()


def runs_in_the_lab(topology: Topology) -> bool:
    """Returns whether the machine of exactly this topology runs in the clone's lab."""
    container = _container_in_lab(topology)
    return container is not None and container.status == "running"


def _runs_in_lab_or_warns(topology: Topology) -> bool:
    """Returns `runs_in_the_lab`. Prints a message if the machine's container has ended: the user
    gets a new guest, without the files left in that machine.
    """
    container = _container_in_lab(topology)
    if container is None or container.status == "running":
        return container is not None
    messages.print(
        f"{topology.name}: the lab's container {container.name} ({container.status}) doesn't run, "
        "so this is a guest of its own; `make lab-up` starts it again",
        markup=False,
    )
    return False


def _container_in_lab(topology: Topology) -> Container | None:
    """Returns the topology's container, or None if there is none or no Docker engine answers."""
    try:
        from pmemlab.machines.container.machine import find_container

        return find_container(topology)
    except MissingRequirementError:
        return None


def _new_guest(topology: Topology, options: GuestOptions | None) -> GuestMachine:
    from pmemlab.machines.guest.machine import open_guest_machine
    from pmemlab.machines.guest.options import GuestOptions

    with messages.status(f"{topology.name}: starting a guest") as status:
        guest = open_guest_machine(
            topology,
            on_step=lambda step: status.update(f"{topology.name}: {step}"),
            options=options or GuestOptions(),
        )
    for mismatch in guest.unproved:
        messages.print(
            f"{topology.name}: not proved, since --qemu-arguments may have changed it: {mismatch}",
            markup=False,
        )
    return guest


def guest_options(arguments: argparse.Namespace) -> GuestOptions | None:
    """Returns the options for a guest, or None if none was given. Sets $PMEMLAB_KERNEL to match."""
    from pmemlab.machines.guest.options import GuestOptions, parse_qemu_arguments

    chosen = [arguments.kernel, arguments.cpus, arguments.qemu_arguments, arguments.share]
    if all(option is None for option in chosen) and not arguments.dry_run:
        return None
    if arguments.state_dir is not None:
        raise LabError("--state-dir: its guest runs already; options for guests can't change it")
    if arguments.cpus is not None and arguments.cpus < 1:
        raise LabError(f"--cpus {arguments.cpus}: must be 1 or more")
    if arguments.kernel is not None:
        from pmemlab.machines.guest.kernel_choice import kernel_folder

        os.environ["PMEMLAB_KERNEL"] = str(kernel_folder(arguments.kernel))
    return GuestOptions(
        cpus=arguments.cpus,
        qemu_arguments=parse_qemu_arguments(arguments.qemu_arguments or ""),
        results=arguments.share,
    )


def print_script(name: str, options: GuestOptions | None) -> int:
    from pmemlab.machines.guest.options import GuestOptions
    from pmemlab.machines.guest.qemu_script import qemu_script

    sys.stdout.write(qemu_script(load_topology(name), options or GuestOptions()))
    return 0


def environment(settings: Sequence[str]) -> dict[str, str]:
    environment = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise LabError(f"--env {setting}: must be NAME=VALUE")
        environment[name] = value
    return environment
