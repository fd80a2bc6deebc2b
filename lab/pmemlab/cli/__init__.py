"""`pmemlab`: a module for each group of commands, a function for each command."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pmemlab.cli import lab, machine, model
from pmemlab.cli.group import Command, Group
from pmemlab.cli.messages import messages
from pmemlab.cli.scenarios import test
from pmemlab.command_end import exit_status_of, is_environment_error
from pmemlab.errors import LabError, lab_error_status

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns a command's exit status, which is `lab_error_status` if the lab broke."""
    lab_arguments, command = _split_at_double_dash(sys.argv[1:] if argv is None else argv)
    try:
        return exit_status_of(lambda: _run(lab_arguments, command))
    except (LabError, OSError) as error:
        if isinstance(error, OSError) and not is_environment_error(error):
            raise
        messages.print(f"pmemlab: {error}", markup=False)
        return lab_error_status(lab_arguments)


def _run(lab_arguments: list[str], command_arguments: list[str]) -> int:
    parser = _parser()
    try:
        arguments, rest = parser.parse_known_args(lab_arguments)
        run: Command = arguments.run
        if rest and run is not test:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as end:  # argparse has printed help, or what is wrong
        return lab_error_status(lab_arguments) if end.code else 0
    arguments.rest = [*rest, *command_arguments]
    # Raises an exception, so that machines are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return run(arguments)


def _split_at_double_dash(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments for `pmemlab` itself, and those after the first `--`."""
    lab_arguments = list(argv)
    if "--" not in lab_arguments:
        return lab_arguments, []
    position = lab_arguments.index("--")
    return lab_arguments[:position], lab_arguments[position + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pmemlab", description="Emulated machines with persistent memory, proved to have it."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = Group(parser.add_subparsers(required=True, metavar="COMMAND"))
    machine.add_commands(commands.add_group("machine", "look at machines, and work inside them"))
    lab.add_commands(commands.add_group("lab", "start and stop machines and servers in containers"))
    commands.add("test", test).usage = "pmemlab test [pytest's arguments]"
    model.add_commands(
        commands.add_group("model", "models of devices: list, measure, plan, predict, fidelity")
    )
    page = commands.add("report", _report)
    page.add_argument("folder", type=Path, metavar="RESULTS", help="a folder of results")
    page.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: report.html in the folder)",
    )
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version  # takes long to import

        try:
            found = version("pmemlab")
        except PackageNotFoundError:  # runs from its sources
            found = "(not installed)"
        print(f"pmemlab {found}")
        parser.exit()


def _report(arguments: argparse.Namespace) -> int:
    """write a page of all results in a folder: figures, tables and proofs of machines"""
    from pmemlab.report.command import report

    return report(arguments)
