"""Connects this process's terminal with a command in a guest."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pmemlab.errors import LabError
from pmemlab.machines.guest.link import Command
from pmemlab.machines.guest.streams import (
    forwarding_input,
    handling_signals,
    shell_status,
    write_all,
)

__all__ = ["run_on_own_terminal", "terminal_size"]


def terminal_size() -> dict[str, int]:
    """Returns the "rows" and "columns" of this process's terminal, or raises `LabError` without
    one.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise LabError(
            "shell: needs a terminal; `pmemlab machine exec MACHINE -- COMMAND` needs none"
        )
    size = os.get_terminal_size(sys.stdout.fileno())
    return {"rows": size.lines, "columns": size.columns}


def run_on_own_terminal(spawn: Callable[[Mapping[str, int]], Command]) -> int:
    """Runs a command that has a terminal in the guest, with this process's terminal for its keys
    and its output. Returns the command's exit status as shells give it.

    Every key goes to the guest, Ctrl-C too. Raises `LabError` if this process has no terminal, or
    the lab breaks; the terminal is then as before.
    """
    command = spawn(terminal_size())

    def type_keys(keys: bytes) -> bool:
        command.type(keys)
        return True

    def resize() -> None:
        command.resize(terminal_size())

    with (
        _raw_terminal(),
        handling_signals(signal.SIGWINCH, resize),
        forwarding_input(type_keys, end=command.kill),  # the command ends with the terminal
    ):
        with suppress(LabError):  # the reader of the output reports a dead guest
            resize()  # the size may have changed since `spawn`
        for _, data in command.output():
            write_all(sys.stdout.fileno(), data)
    return shell_status(command.returncode)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    terminal = sys.stdin.fileno()
    previous_settings = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, previous_settings)
