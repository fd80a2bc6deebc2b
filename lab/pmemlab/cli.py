"""`pmemlab`: one function a command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pmemlab.errors import (
    EXEC_LAB_ERROR_STATUS,
    LabError,
    MachineDiedError,
    MissingRequirementError,
)
from pmemlab.machines import Machine
from pmemlab.planning.options import add_options as plan_options
from pmemlab.powercut.command import add_options as powercut_options
from pmemlab.powercut.command import powercut
from pmemlab.topology import Topology, load_topology, topology_names

if TYPE_CHECKING:
    import pytest

    from pmemlab.machines.copying import Spawner
    from pmemlab.machines.guest import GuestMachine
    from pmemlab.machines.guest_options import GuestOptions

__all__ = ["main"]

_LAB_ERROR_STATUS = 2
_MEASURING = """\
Measure a device, and write a file of it, to be given by its path where a device is wanted.

What is measured is a NUMA node (node0: DRAM, CXL memory or PMem as system memory), a folder on a
dax mount or in /dev/shm (memory too), or a folder on a disk.
"""
_messages = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


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
    parser.add_argument("--version", action="version", version=f"pmemlab {_version()}")
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

    down = add("down", _down)
    down.add_argument("--images", action="store_true", help="the clone's images too")

    add("servers", _servers)

    show = add("show", _show)
    show.add_argument("machine", metavar="MACHINE", help=f"one of {machines}, or a topology's file")

    execute = add("exec", _exec)
    execute.usage = "pmemlab exec (MACHINE | --state-dir DIR) [options] -- COMMAND [ARGUMENT ...]"
    execute.set_defaults(lab_error_status=EXEC_LAB_ERROR_STATUS)
    execute.add_argument("machine", nargs="?", metavar="MACHINE", help=f"one of {machines}")
    execute.add_argument("--state-dir", type=Path, help="of a running `pmemlab serve`")
    execute.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    execute.add_argument("--timeout", type=float, metavar="S", help="kill the command after S s")
    execute.add_argument(
        "--copy-in",
        action="append",
        default=[],
        metavar="PATH:/PATH",
        help="file or folder of this computer to copy into the machine before the command",
    )
    execute.add_argument(
        "--copy-out",
        action="append",
        default=[],
        metavar="/PATH:PATH",
        help="file or folder of the machine to copy to this computer after the command",
    )

    copy = add("cp", _copy)
    copy.add_argument("source", metavar="SOURCE", help="a path here, or MACHINE:PATH")
    copy.add_argument("target", metavar="TARGET", help="a path here, or MACHINE:PATH")
    copy.add_argument("--state-dir", type=Path, help="of a running `pmemlab serve`; then :PATH")

    shell = add("shell", _shell)
    shell.usage = "pmemlab shell (MACHINE | --state-dir DIR) [options] [-- COMMAND [ARGUMENT ...]]"
    shell.add_argument("machine", nargs="?", metavar="MACHINE", help=f"one of {machines}")
    shell.add_argument("--state-dir", type=Path, help="of a running `pmemlab serve`")
    shell.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    for command in (execute, shell):
        _add_guest_options(command)

    run = add("run", _run)
    run.usage = "pmemlab run [pytest's arguments]"

    planned = add("plan", _plan)
    plan_options(planned)

    cut = add("powercut", _powercut)
    powercut_options(cut)

    devices = add("devices", _devices)
    devices.add_argument("name", nargs="?", metavar="NAME", help="one of them, or a file")

    measure = add("measure-device", _measure_device)
    _add_measuring_options(measure)

    from pmemlab.fidelity.command import add_options as fidelity_options
    from pmemlab.openembedding.options import add_options as openembedding_options

    openembedding_options(add("openembedding", _openembedding))
    fidelity_options(add("fidelity", _fidelity))

    page = add("report", _report)
    page.add_argument("folder", type=Path, metavar="RESULTS", help="a folder of results")
    page.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="without it, report.html in the folder"
    )

    serve = add("serve", _serve)
    serve.add_argument("topology", metavar="TOPOLOGY", help=f"one of {machines}, or a file")
    serve.add_argument("--state-dir", type=Path, required=True, help="for what belongs to it")

    power = add("power", _power)
    power.add_argument("switch", choices=("cut", "on"), help="at once; or boot again, and prove")
    power.add_argument("--state-dir", type=Path, required=True, help="of a running `pmemlab serve`")
    return parser


def _version() -> str:
    try:
        return version("pmemlab")
    except PackageNotFoundError:  # it is run from its sources
        return "(not installed)"


def _add_guest_options(command: argparse.ArgumentParser) -> None:
    guest = command.add_argument_group(
        "guest", "each starts a guest for this command, also where the lab runs that machine"
    )
    guest.add_argument(
        "--kernel",
        metavar="VERSION|PATH",
        help="a version in /boot, a FOLDER/boot/vmlinuz-VERSION, or a FOLDER with boot and lib",
    )
    guest.add_argument("--cpus", type=int, metavar="N", help="virtual CPUs")
    guest.add_argument("--qemu-arguments", metavar="TEXT", help="added to QEMU's, in one text")
    guest.add_argument(
        "--share", type=Path, metavar="FOLDER", help="the guest may write it, at /mnt/results"
    )
    guest.add_argument(
        "--dry-run", action="store_true", help="print the commands that would start the guest"
    )


def _add_measuring_options(command: argparse.ArgumentParser) -> None:
    command.description = _MEASURING
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("what", metavar="PATH|NODE", help="a folder, or node0, node1, ...")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.yaml")
    command.add_argument("--force", action="store_true", help="overwrite FILE.yaml")
    command.add_argument("--name", help="of the device; default: the file's")
    command.add_argument("--title", help="for people; default: what was measured")
    command.add_argument(
        "--size",
        metavar="BYTES",
        help="to measure, as 4G; default: eight times the last-level cache, or 4G of a disk",
    )
    command.add_argument(
        "--seconds", type=float, default=0.15, metavar="S", help="a figure; default: 0.15"
    )
    command.add_argument(
        "--page-cache", action="store_true", help="of a disk: through the page cache, not past it"
    )
    command.add_argument(
        "--media-line",
        metavar="BYTES",
        help="what the medium moves at least, if you know: 256 for Optane; default: 64, or 4K",
    )
    command.add_argument("--last-level-cache", metavar="BYTES", help="where the system doesn't say")


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


def _servers(_arguments: argparse.Namespace) -> int:
    """start parameter servers in containers, on a network of their own; `down` removes them"""
    from pmemlab.servers import HEAD, HEAD_ADDRESS, servers_up

    head = servers_up()[HEAD]
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"train on them:    docker exec -t {head.name} python -m pmemlab.workloads.criteo_deepctr "
        f"--generated 40000 --server --shards 2 --master_endpoint {HEAD_ADDRESS} "
        "--storage_type DRAM_PMEM --storage_path node:pmem --storage_size 4194304 16777216",
        f"see how they are: docker exec -t {head.name} python -m embstore.server status "
        f"--master_endpoint {HEAD_ADDRESS}",
        sep="\n",
    )
    return 0


def _down(arguments: argparse.Namespace) -> int:
    """stop the lab, and remove whatever it left"""
    from pmemlab.compose import lab_down

    lab_down(images=arguments.images)
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
    """run a command in a machine as ssh does: input, output, Ctrl-C and exit status are its own"""
    if not arguments.rest and not arguments.dry_run:
        raise LabError("exec: give the command after `--`")
    if (arguments.machine is None) == (arguments.state_dir is None):
        raise LabError("exec: give either a machine or --state-dir")
    env = _environment(arguments.env)
    options = _guest_options(arguments)
    into = [_copy_in(text) for text in arguments.copy_in]
    out_of = [_copy_out(text) for text in arguments.copy_out]
    if arguments.dry_run:
        return _print_script(arguments.machine, options)
    from pmemlab.guest.streams import run_on_own_streams
    from pmemlab.machines.copying import copy_in, copy_out

    argv = arguments.rest
    with _spawner(arguments, options) as machine:
        for source, target in into:
            copy_in(machine, source, target)
        try:
            return run_on_own_streams(
                lambda: machine.spawn(argv, env, takes_input=True), argv, arguments.timeout
            )
        finally:
            # Also after a failure or a timeout, whose traces are wanted most.
            if not isinstance(sys.exc_info()[1], MachineDiedError):
                for path, folder in out_of:
                    copy_out(machine, path, folder)


def _copy(arguments: argparse.Namespace) -> int:
    """copy a file or folder into a running machine, or out of it, as `docker cp` does"""
    from pmemlab.machines.copying import copy_in, copy_out

    source_machine, source = _machine_and_path(arguments.source)
    target_machine, target = _machine_and_path(arguments.target)
    if (source_machine is None) == (target_machine is None):
        raise LabError("cp: one of SOURCE and TARGET must be MACHINE:PATH, the other a path here")
    name = source_machine or target_machine
    if bool(name) == (arguments.state_dir is not None):
        raise LabError("cp: give either MACHINE:PATH, or --state-dir and :PATH")
    arguments.machine = name or None
    if name and not _runs_in_the_lab(load_topology(name)):
        raise LabError(
            f"cp: {name} does not run in this clone's lab; `make lab-up` starts it, and "
            "`pmemlab exec MACHINE --copy-in or --copy-out` copies for one command"
        )
    with _spawner(arguments, None) as machine:
        if source_machine is None:
            copy_in(machine, Path(arguments.source), target)
        else:
            copy_out(machine, source, Path(arguments.target))
    return 0


def _machine_and_path(text: str) -> tuple[str | None, str]:
    """Of MACHINE:PATH, or of :PATH for --state-dir; (None, path) for a path on this computer."""
    machine, colon, path = text.partition(":")
    return (machine, path) if colon and "/" not in machine else (None, text)


def _copy_in(text: str) -> tuple[Path, str]:
    source, colon, target = text.rpartition(":")
    if not (source and colon and target.startswith("/")):
        raise LabError(f"--copy-in {text}: must be PATH:/PATH/IN/THE/MACHINE")
    return Path(source), target


def _copy_out(text: str) -> tuple[str, Path]:
    source, colon, target = text.partition(":")
    if not (source.startswith("/") and colon and target):
        raise LabError(f"--copy-out {text}: must be /PATH/IN/THE/MACHINE:PATH")
    return source, Path(target)


def _shell(arguments: argparse.Namespace) -> int:
    """open a shell in a machine, on this terminal"""
    if (arguments.machine is None) == (arguments.state_dir is None):
        raise LabError("shell: give either a machine or --state-dir")
    env = {"TERM": os.environ.get("TERM", "dumb"), **_environment(arguments.env)}
    options = _guest_options(arguments)
    if arguments.dry_run:
        return _print_script(arguments.machine, options)
    from pmemlab.guest.terminal import own_size, run_on_own_terminal

    own_size()  # without a terminal, nothing is started
    argv = arguments.rest or ["/bin/bash"]
    with _spawner(arguments, options) as machine:
        return run_on_own_terminal(lambda size: machine.spawn(argv, env, size.as_document()))


def _run(arguments: argparse.Namespace) -> int:
    """run the scenarios: pytest, with its arguments"""
    import pytest

    from pmemlab.clone import find_clone

    root = find_clone().root
    settings = [f"--rootdir={root}", "-c", str(root / "pyproject.toml")]
    return int(pytest.main([*settings, *arguments.rest], [_ScenariosByDefault(root)]))


class _ScenariosByDefault:
    """A plugin of pytest's: without files or folders in its arguments, the scenarios are run.

    Pytest alone can tell these from the values of options, as in `-k lab`.
    """

    def __init__(self, root: Path) -> None:
        self._scenarios = str(root / "scenarios")

    def pytest_configure(self, config: pytest.Config) -> None:
        if config.args_source is not config.ArgsSource.ARGS:
            config.args = [self._scenarios]


def _plan(arguments: argparse.Namespace) -> int:
    """rank storage modes and devices for a table: bytes, hit rates, speed, machines and price"""
    try:
        import embstore  # noqa: F401
    except ImportError as error:
        raise MissingRequirementError(f"plan: the engine ({error})", "make setup") from error
    from pmemlab.planning.command import plan

    return plan(arguments)


def _powercut(arguments: argparse.Namespace) -> int:
    """cut a program's power: what it did not flush or sync is lost, and its recovery is checked"""
    return powercut(arguments)


def _devices(arguments: argparse.Namespace) -> int:
    """list the devices that tables can be predicted on, or show one with its sources"""
    from pmemlab.devices.command import print_device, print_devices

    console = Console(highlight=False)
    if arguments.name is None:
        print_devices(console)
    else:
        print_device(console, arguments.name)
    return 0


def _measure_device(arguments: argparse.Namespace) -> int:
    """measure a NUMA node, a dax mount or a disk, and write a device file of it"""
    from pmemlab.devices.command import print_device
    from pmemlab.devices.measuring.command import measure_device

    output = measure_device(arguments, _messages)
    console = Console(highlight=False)
    print_device(console, str(output))
    console.print(f"\nwritten: {output}", markup=False)
    return 0


def _openembedding(arguments: argparse.Namespace) -> int:
    """predict times and costs of PMem-based OpenEmbedding (ICDE 2023), on its own machines"""
    from pmemlab.openembedding.command import openembedding

    return openembedding(arguments)


def _fidelity(arguments: argparse.Namespace) -> int:
    """print predictions beside what was published, with the error of each"""
    from pmemlab.fidelity.command import fidelity

    return fidelity(arguments)


def _report(arguments: argparse.Namespace) -> int:
    """write a page of all that a folder of results says: figures, tables, machines' proofs"""
    from pmemlab.report.command import report

    return report(arguments)


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


def _power(arguments: argparse.Namespace) -> int:
    """cut the power of a machine that is served, or boot it again on the same media"""
    from pmemlab.guest.control import switch_power

    switch_power(arguments.state_dir, on=arguments.switch == "on")
    return 0


@contextmanager
def _spawner(arguments: argparse.Namespace, options: GuestOptions | None) -> Iterator[Spawner]:
    """Starts commands in the guest of --state-dir; else in the running lab's machine; else in a
    guest that lives as long as this context. With options it is always a new guest.
    """
    if arguments.state_dir is not None:
        from pmemlab.guest.control import attach

        with attach(arguments.state_dir) as link:
            yield link
        return
    topology = load_topology(arguments.machine)
    if options is None and _runs_in_the_lab(topology):
        from pmemlab.machines.container import open_container_machine

        # People may look at a machine that a run is on.
        with (
            open_container_machine(topology, leased=False) as machine,
            machine.attach() as link,
        ):
            yield link
        return
    with _fresh_guest(topology, options) as guest:
        yield guest


@contextmanager
def _running_or_fresh(name: str) -> Iterator[Machine]:
    """The running lab's machine of that name, else a guest for this command alone."""
    topology = load_topology(name)
    if _runs_in_the_lab(topology):
        from pmemlab.machines.container import open_container_machine

        # People may look at a machine that a run is on.
        with open_container_machine(topology, leased=False) as machine:
            yield machine
        return
    with _fresh_guest(topology, None) as guest:
        yield guest


def _runs_in_the_lab(topology: Topology) -> bool:
    try:
        from pmemlab.machines.container import running_machines

        return topology.name in running_machines()
    except MissingRequirementError:
        return False


def _fresh_guest(topology: Topology, options: GuestOptions | None) -> GuestMachine:
    from pmemlab.machines.guest import open_guest_machine
    from pmemlab.machines.guest_options import GuestOptions

    with _messages.status(f"{topology.name}: starting a guest") as status:
        guest = open_guest_machine(
            topology,
            on_step=lambda step: status.update(f"{topology.name}: {step}"),
            options=options or GuestOptions(),
        )
    for mismatch in guest.unproved:
        _messages.print(
            f"{topology.name}: not proved, since --qemu-arguments may have changed it: {mismatch}",
            markup=False,
        )
    return guest


def _guest_options(arguments: argparse.Namespace) -> GuestOptions | None:
    """What the user wants of a guest; None for nothing. $PMEMLAB_KERNEL is set as they want it."""
    from pmemlab.machines.guest_options import GuestOptions, parse_qemu_arguments

    wanted = [arguments.kernel, arguments.cpus, arguments.qemu_arguments, arguments.share]
    if all(option is None for option in wanted) and not arguments.dry_run:
        return None
    if arguments.state_dir is not None:
        raise LabError("--state-dir: its guest runs already; options for guests can't change it")
    if arguments.cpus is not None and arguments.cpus < 1:
        raise LabError(f"--cpus {arguments.cpus}: must be 1 or more")
    if arguments.kernel is not None:
        from pmemlab.guest.kernel_choice import kernel_folder

        os.environ["PMEMLAB_KERNEL"] = str(kernel_folder(arguments.kernel))
    return GuestOptions(
        cpus=arguments.cpus,
        qemu_arguments=parse_qemu_arguments(arguments.qemu_arguments or ""),
        results=arguments.share,
    )


def _print_script(name: str, options: GuestOptions | None) -> int:
    from pmemlab.guest.by_hand import script
    from pmemlab.machines.guest_options import GuestOptions

    sys.stdout.write(script(load_topology(name), options or GuestOptions()))
    return 0


def _environment(settings: Sequence[str]) -> dict[str, str]:
    environment = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise LabError(f"--env {setting}: must be NAME=VALUE")
        environment[name] = value
    return environment
