"""A terminal here, for a command in a guest."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from pmemlab.errors import LabError
from pmemlab.machines.guest.link import Command
from pmemlab.machines.guest.streams import shell_status, write_all

__all__ = ["TerminalSize", "own_size", "run_on_own_terminal"]

_READ_BYTES = 1 << 12


@dataclass(frozen=True)
class TerminalSize:
    """A terminal's size in characters."""

    rows: int
    columns: int

    def as_document(self) -> dict[str, int]:
        return asdict(self)


def own_size() -> TerminalSize:
    """Returns the size of this process's terminal. Raises `LabError` if it has none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise LabError(
            "shell: needs a terminal; `pmemlab machine exec MACHINE -- COMMAND` needs none"
        )
    size = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(size.lines, size.columns)


def run_on_own_terminal(spawn: Callable[[TerminalSize], Command]) -> int:
    """Run a command that has a terminal in the guest, with this process's terminal for its keys
    and its output; its exit status as shells give it.

    Every key goes to the guest, Ctrl-C too. Raises `LabError` where this process has no terminal
    and where the lab breaks; the terminal is then as it was.
    """
    command = spawn(own_size())
    with _raw_terminal(), _keys_sent_to(command):
        for _, data in command.output():
            write_all(sys.stdout.fileno(), data)
    return shell_status(command.returncode)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


@contextmanager
def _keys_sent_to(command: Command) -> Iterator[None]:
    """Send what is typed, and the terminal's size when it changes, from a thread of its own."""
    # A signal's handler may interrupt whoever holds the link's lock, so it only wakes the thread.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    ended = threading.Event()

    def send() -> None:
        with suppress(LabError):  # a dead guest is told of where its output is read
            while True:
                ready, _, _ = select.select([sys.stdin.fileno(), woken], [], [])
                if woken in ready:
                    os.read(woken, _READ_BYTES)
                    if ended.is_set():
                        return
                    command.resize(own_size().as_document())
                if sys.stdin.fileno() in ready:
                    keys = os.read(sys.stdin.fileno(), _READ_BYTES)
                    if not keys:  # the terminal is gone
                        command.kill()
                        return
                    command.type(keys)

    def resized(_number: int, _frame: object) -> None:
        with suppress(BlockingIOError):
            os.write(wake, b"r")

    before = signal.signal(signal.SIGWINCH, resized)
    os.write(wake, b"r")  # it may have changed since the command was told
    thread = threading.Thread(target=send, name="keys", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        ended.set()
        with suppress(BlockingIOError):
            os.write(wake, b"e")
        thread.join()
        os.close(wake)
        os.close(woken)
