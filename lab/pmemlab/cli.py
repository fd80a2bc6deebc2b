"""`pmemlab`: one function a command."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pmemlab.errors import EXEC_LAB_ERROR_STATUS, LabError, MissingRequirementError
from pmemlab.machines import Machine, open_machine
from pmemlab.topology import load_topology, topology_names

__all__ = ["main"]

_LAB_ERROR_STATUS = 2
_messages = Console(stderr=True, highlight=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """A command's exit status: 2 where the lab broke, but 125 for `exec`."""
    own, command = _split(sys.argv[1:] if argv is None else argv)
    arguments, rest = _parser().parse_known_args(own)
    if rest and arguments.run is not _run:
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.rest = [*rest, *command]
    run: Callable[[argparse.Namespace], int] = arguments.run
    # As an exception, so that machines are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return run(arguments)
    except LabError as error:
        _messages.print(f"pmemlab: {error}", markup=False)
        return int(arguments.lab_error_status)
    except KeyboardInterrupt:
        return 130


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and what comes after the first `--`."""
    own = list(argv)
    if "--" not in own:
        return own, []
    at = own.index("--")
    return own[:at], own[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pmemlab", description="Emulated machines with persistent memory, proved to have it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run, lab_error_status=_LAB_ERROR_STATUS)
        return command

    machines = ", ".join(topology_names())
    add("doctor", _doctor)

    up = add("up", _up)
    up.add_argument(
        "machines", nargs="*", metavar="MACHINE", help=f"of {machines}; default: all that stand"
    )

    add("down", _down)

    show = add("show", _show)
    show.add_argument("machine", metavar="MACHINE", help=f"one of {machines}, or a topology's file")

    execute = add("exec", _exec)
    execute.usage = "pmemlab exec (MACHINE | --state-dir DIR) [options] -- COMMAND [ARGUMENT ...]"
    execute.set_defaults(lab_error_status=EXEC_LAB_ERROR_STATUS)
    execute.add_argument("machine", nargs="?", metavar="MACHINE", help=f"one of {machines}")
    execute.add_argument("--state-dir", type=Path, help="of a running `pmemlab serve`")
    execute.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    execute.add_argument("--timeout", type=float, metavar="S", help="kill the command after S s")

    run = add("run", _run)
    run.usage = "pmemlab run [pytest's arguments]"

    serve = add("serve", _serve)
    serve.add_argument("topology", metavar="TOPOLOGY", help=f"one of {machines}, or a file")
    serve.add_argument("--state-dir", type=Path, required=True, help="for what belongs to it")
    return parser


def _doctor(_: argparse.Namespace) -> int:
    """say which kinds of machines run on this computer, and what the others need"""
    from pmemlab.doctor import diagnose, diagnosis_table

    with _messages.status("looking around; trying KVM may take 15 s"):
        diagnoses = diagnose()
    Console().print(diagnosis_table(diagnoses))
    return 0 if any(diagnosis.runs for diagnosis in diagnoses) else 1


def _up(arguments: argparse.Namespace) -> int:
    """start the lab: machines in containers, proved; those on demand only where they are named"""
    from pmemlab.compose import lab_up

    for name in arguments.machines:
        load_topology(name)  # a wrong name is told before anything is built
    lab_up(arguments.machines)
    return 0


def _down(_: argparse.Namespace) -> int:
    """stop the lab, and remove whatever it left"""
    from pmemlab.compose import lab_down

    lab_down()
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """print a machine's persistent memory: ndctl list -NR, numactl -H, memory resources"""
    from pmemlab.memory_resources import memory_resources, memory_table

    console = Console(highlight=False)
    with _running_or_fresh(arguments.machine) as machine:
        for command in (["ndctl", "list", "-NR"], ["numactl", "-H"]):
            result = machine.run(command, timeout=60)
            console.print(f"# {' '.join(command)}", style="bold")
            console.print(f"{result.stdout}{result.stderr}".rstrip(), markup=False)
            console.print()
        console.print("# ipmctl show -memoryresources", style="bold")
        console.print(memory_table(memory_resources(machine.topology, machine.facts())))
    return 0


def _exec(arguments: argparse.Namespace) -> int:
    """run a command in a machine, with its output and exit status"""
    if not arguments.rest:
        raise LabError("exec: give the command after `--`")
    if (arguments.machine is None) == (arguments.state_dir is None):
        raise LabError("exec: give either a machine or --state-dir")
    env = _environment(arguments.env)
    if arguments.state_dir is not None:
        from pmemlab.guest.control import run_attached

        return run_attached(arguments.state_dir, arguments.rest, env, arguments.timeout)
    with _running_or_fresh(arguments.machine) as machine:
        result = machine.run(arguments.rest, env, arguments.timeout)
    for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(text.encode(errors="surrogateescape"))
        stream.flush()
    return result.returncode if result.returncode >= 0 else 128 - result.returncode


def _run(arguments: argparse.Namespace) -> int:
    """run the scenarios: pytest, with its arguments"""
    import pytest

    from pmemlab.clone import find_clone

    root = find_clone().root
    chosen = [argument for argument in arguments.rest if Path(argument.split("::")[0]).exists()]
    folders = [] if chosen else [str(root / "scenarios")]
    return int(pytest.main([f"--rootdir={root}", *folders, *arguments.rest]))


def _serve(arguments: argparse.Namespace) -> int:
    """keep one machine in the foreground, for `pmemlab exec --state-dir`"""
    from pmemlab.guest.serve import serve

    topology = load_topology(arguments.topology)
    serve(
        topology,
        arguments.state_dir,
        on_step=lambda step: _messages.print(f"{topology.name}: {step}", markup=False),
        on_ready=lambda proof: _messages.print(
            f"{topology.name}: proved on {proof.accelerator.upper()}: "
            + ", ".join(f"{fact} = {value}" for fact, value in proof.proved.items()),
            markup=False,
        ),
    )
    return 0


@contextmanager
def _running_or_fresh(name: str) -> Iterator[Machine]:
    """The running lab's machine of that name, else a guest for this command alone."""
    topology = load_topology(name)
    try:
        from pmemlab.machines.container import running_machines

        is_running = topology.name in running_machines()
    except MissingRequirementError:
        is_running = False
    if is_running:
        with open_machine(topology, "container") as machine:
            yield machine
        return
    from pmemlab.machines.guest import open_guest_machine

    with _messages.status(f"{topology.name}: starting a guest") as status:
        guest = open_guest_machine(
            topology, on_step=lambda step: status.update(f"{topology.name}: {step}")
        )
    with guest:
        yield guest


def _environment(settings: Sequence[str]) -> dict[str, str]:
    environment = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise LabError(f"--env {setting}: must be NAME=VALUE")
        environment[name] = value
    return environment
