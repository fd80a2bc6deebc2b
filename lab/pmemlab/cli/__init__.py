"""`pmemlab`: one module a group of commands, one function a command."""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pmemlab.cli import lab, machine, model
from pmemlab.cli.group import Command, Group
from pmemlab.cli.messages import messages
from pmemlab.cli.scenarios import test
from pmemlab.errors import EXEC_LAB_ERROR_STATUS, LabError

__all__ = ["main"]

# No mistake of the lab's: there is no room, or a disk fails, wherever it writes; or the user gave a
# name that no file can have.
_NOT_OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENAMETOOLONG)


def main(argv: Sequence[str] | None = None) -> int:
    """A command's exit status: 2 where the lab broke, but 125 for `machine exec`."""
    own, command = _split(sys.argv[1:] if argv is None else argv)
    try:
        arguments, rest = _parser().parse_known_args(own)
        run: Command = arguments.run
        if rest and run is not test:
            _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as end:
        if not end.code or own[:2] != ["machine", "exec"]:
            raise
        return EXEC_LAB_ERROR_STATUS  # any other may be its command's
    arguments.rest = [*rest, *command]
    # As an exception, so that machines are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _nobody_reads_stdout():
            raise
        return 1
    except (LabError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NOT_OURS:
            raise
        messages.print(f"pmemlab: {error}", markup=False)
        return int(arguments.lab_error_status)
    except KeyboardInterrupt:
        return 130


def _nobody_reads_stdout() -> bool:
    """Returns whether stdout is a closed pipe; if so, what is left in its buffer goes nowhere, so
    that the interpreter doesn't complain at its end.
    """
    stdout = sys.stdout.fileno()
    poll = select.poll()
    poll.register(stdout, 0)
    if not any(found & select.POLLERR for _, found in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout)
    os.close(nowhere)
    return True


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
        except PackageNotFoundError:  # it is run from its sources
            found = "(not installed)"
        print(f"pmemlab {found}")
        parser.exit()


def _report(arguments: argparse.Namespace) -> int:
    """write a page of all that a folder of results says: figures, tables, machines' proofs"""
    from pmemlab.report.command import report

    return report(arguments)
