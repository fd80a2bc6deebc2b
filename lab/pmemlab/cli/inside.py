"""`pmemlab machine exec`, `shell` and `cp`: what a user does inside a machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pmemlab.cli.machine_access import (
    environment,
    guest_options,
    print_script,
    runs_in_the_lab,
    spawner,
)
from pmemlab.errors import LabError, MachineDiedError
from pmemlab.topology import load_topology

__all__ = ["copy", "execute", "shell"]


def execute(arguments: argparse.Namespace) -> int:
    """run a command in a machine, with stdin, output, Ctrl-C and exit status passed on as by ssh"""
    if not arguments.rest and not arguments.dry_run:
        raise LabError("exec: give the command after `--`")
    if (arguments.machine is None) == (arguments.state_dir is None):
        raise LabError("exec: give either a machine or --state-dir")
    env = environment(arguments.env)
    options = guest_options(arguments)
    into = [_copy_in(text) for text in arguments.copy_in]
    out_of = [_copy_out(text) for text in arguments.copy_out]
    if arguments.dry_run:
        return print_script(arguments.machine, options)
    from pmemlab.machines.copying import copy_in, copy_out
    from pmemlab.machines.guest.streams import run_on_own_streams

    argv = arguments.rest
    with spawner(arguments, options) as machine:
        for source, target in into:
            copy_in(machine, source, target)
        try:
            return run_on_own_streams(
                lambda: machine.spawn(argv, env, takes_input=True), argv, arguments.timeout
            )
        finally:
            # Also after a failure or a timeout, when the files are wanted most.
            if not isinstance(sys.exc_info()[1], MachineDiedError):
                for path, folder in out_of:
                    copy_out(machine, path, folder)


def copy(arguments: argparse.Namespace) -> int:
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
    if name and not runs_in_the_lab(load_topology(name)):
        raise LabError(
            f"cp: {name} does not run in this clone's lab; `make lab-up` starts it, and "
            "`pmemlab machine exec MACHINE --copy-in or --copy-out` copies for one command"
        )
    with spawner(arguments, None) as machine:
        if source_machine is None:
            copy_in(machine, Path(arguments.source), target)
        else:
            copy_out(machine, source, Path(arguments.target))
    return 0


def _machine_and_path(text: str) -> tuple[str | None, str]:
    """Splits MACHINE:PATH, or :PATH for --state-dir; a path on this computer gives (None, path)."""
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


def shell(arguments: argparse.Namespace) -> int:
    """open a shell in a machine, on this terminal"""
    if (arguments.machine is None) == (arguments.state_dir is None):
        raise LabError("shell: give either a machine or --state-dir")
    env = {"TERM": os.environ.get("TERM", "dumb"), **environment(arguments.env)}
    options = guest_options(arguments)
    if arguments.dry_run:
        return print_script(arguments.machine, options)
    from pmemlab.machines.guest.terminal import run_on_own_terminal, terminal_size

    terminal_size()  # without a terminal, nothing is started
    argv = arguments.rest or ["/bin/bash"]
    with spawner(arguments, options) as machine:
        return run_on_own_terminal(lambda size: machine.spawn(argv, env, size))
