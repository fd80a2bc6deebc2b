"""`pmemlab machine`: work with one machine at a time."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from rich.table import Table

from pmemlab.cli.group import Group
from pmemlab.cli.inside import copy, execute, shell
from pmemlab.cli.machine_access import (
    add_guest_options,
    running_machine_names,
    running_machine_or_new_guest,
)
from pmemlab.cli.messages import messages
from pmemlab.machines.capacity import gibibytes_text, media_bytes
from pmemlab.quantities import MAX_SECONDS
from pmemlab.results import results_console
from pmemlab.topology import load_topology, topology_names

__all__ = ["add_commands"]

_SERVED = "state folder of a running `pmemlab machine serve`"


def add_commands(group: Group) -> None:
    machines = ", ".join(topology_names())
    group.add("doctor", _doctor)
    group.add("list", _list)

    show = group.add("show", _show)
    show.add_argument("machine", metavar="MACHINE", help=f"one of {machines}, or a topology's file")

    run = group.add("exec", execute)
    run.usage = (
        "pmemlab machine exec (MACHINE | --state-dir DIR) [options] -- COMMAND [ARGUMENT ...]"
    )
    run.add_argument("--timeout", type=_seconds, metavar="S", help="kill the command after S s")
    run.add_argument(
        "--copy-in",
        action="append",
        default=[],
        metavar="PATH:/PATH",
        help="file or folder of this computer to copy into the machine before the command",
    )
    run.add_argument(
        "--copy-out",
        action="append",
        default=[],
        metavar="/PATH:PATH",
        help="file or folder of the machine to copy to this computer after the command",
    )
    open_shell = group.add("shell", shell)
    open_shell.usage = (
        "pmemlab machine shell (MACHINE | --state-dir DIR) [options] [-- COMMAND [ARGUMENT ...]]"
    )
    for command in (run, open_shell):
        command.add_argument(
            "machine",
            nargs="?",
            metavar="MACHINE",
            help=f"one of {machines}, or a topology's file",
        )
        _add_state_dir(command, _SERVED)
        command.add_argument(
            "--env",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="environment variable of the command; may be repeated",
        )
        add_guest_options(command)

    copying = group.add("cp", copy)
    copying.add_argument("source", metavar="SOURCE", help="a path here, or MACHINE:PATH")
    copying.add_argument("target", metavar="TARGET", help="a path here, or MACHINE:PATH")
    _add_state_dir(copying, f"{_SERVED}; then :PATH")

    serve = group.add("serve", _serve)
    serve.add_argument("topology", metavar="TOPOLOGY", help=f"one of {machines}, or a file")
    _add_state_dir(serve, "folder for the machine's state", required=True)

    power = group.add("power", _power)
    power.add_argument(
        "switch", choices=("cut", "on"), help="cut: at once; on: boot again and prove"
    )
    _add_state_dir(power, _SERVED, required=True)


def _add_state_dir(command: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:
    command.add_argument("--state-dir", type=Path, required=required, metavar="DIR", help=help)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= MAX_SECONDS:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: must be a number above 0, a week at most")


def _doctor(_: argparse.Namespace) -> int:
    """say which kinds of machines run on this computer, and what the others need"""
    from pmemlab.doctor import diagnose, diagnosis_table

    with messages.status("looking around; trying KVM may take 8 s"):
        diagnoses = diagnose()
    results_console().print(diagnosis_table(diagnoses))
    return 0 if any(diagnosis.can_run for diagnosis in diagnoses) else 1


def _list(_: argparse.Namespace) -> int:
    """list the machines, the devices that they stand for, and which of them run in the lab"""
    running = running_machine_names()
    table = Table("machine", "what it is", "stands for", "memory", "in the lab")
    for topology in map(load_topology, topology_names()):
        named = topology.stands_for
        devices = [named.dram, named.pmem, named.ssd, named.gpu]
        table.add_row(
            topology.name,
            topology.summary,
            ", ".join(device for device in devices if device) or "no device",
            gibibytes_text(topology.memory_bytes + media_bytes(topology)),
            "runs" if topology.name in running else "",
        )
    results_console().print(table)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """print a machine's persistent memory: ndctl list -NR, numactl -H, memory resources"""
    from pmemlab.memory_resources import memory_resources, memory_table

    console = results_console()
    with running_machine_or_new_guest(arguments.machine) as machine:
        for command in (["ndctl", "list", "-NR"], ["numactl", "-H"]):
            result = machine.run(command, timeout=60)
            console.print(f"# {' '.join(command)}", style="bold")
            console.print(f"{result.stdout}{result.stderr}".rstrip(), markup=False)
            console.print()
        console.print("# ipmctl show -memoryresources", style="bold")
        console.print(memory_table(memory_resources(machine.topology, machine.facts())))
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    """keep one machine in the foreground, for `pmemlab machine exec --state-dir`"""
    from pmemlab.machines.guest.serve import serve

    topology = load_topology(arguments.topology)
    serve(
        topology,
        arguments.state_dir,
        on_step=lambda step: messages.print(f"{topology.name}: {step}", markup=False),
        on_ready=lambda proof: messages.print(
            f"{topology.name}: proved on {proof.accelerator.upper()}: "
            + ", ".join(f"{fact} = {value}" for fact, value in proof.proved.items()),
            markup=False,
        ),
    )
    return 0


def _power(arguments: argparse.Namespace) -> int:
    """cut the power of a machine that is served, or boot it again on the same media"""
    from pmemlab.machines.guest.control import switch_power

    switch_power(arguments.state_dir, on=arguments.switch == "on")
    return 0
