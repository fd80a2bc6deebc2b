"""Connects this process's standard streams with a command in a guest."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import FrameType

from pmemlab.errors import CommandTimeoutError, LabError
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.link import Command

__all__ = [
    "forwarding_input",
    "handling_signals",
    "run_on_own_streams",
    "shell_status",
    "write_all",
]

_STDIN = 0
_DESCRIPTORS = {agent.STDOUT: 1, agent.STDERR: 2}
_READ_BYTES = 1 << 16
_BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE


def run_on_own_streams(
    spawn: Callable[[], Command], argv: Sequence[str], timeout: float | None = None
) -> int:
    """Runs a command that takes input, on this process's standard input, output and error. Bytes
    pass as they come. Returns the command's exit status as shells give it.

    The first Ctrl-C (SIGINT) goes to the command; the second kills it and raises KeyboardInterrupt.
    If this process's output has no reader any more, or can't be written, the command is killed.

    argv: the command's name in errors.

    Raises `CommandTimeoutError` past the timeout, after killing the command, and `LabError` if the
    output can't be written, or the lab breaks.
    """
    command = spawn()
    try:
        with (
            forwarding_input(command.send_input, command.end_input),
            _forwarding_interrupts_to(command),
            closing(command.output(timeout)) as output,
        ):
            for stream, data in output:
                _write_output(_DESCRIPTORS[stream], data)
    except TimeoutError:
        raise CommandTimeoutError(argv, timeout or 0.0, "", "") from None
    except BrokenPipeError:
        return _BROKEN_PIPE_STATUS
    return shell_status(command.returncode)


def shell_status(returncode: int) -> int:
    """Returns an exit status as shells give it: 128 + the number of the signal that ended it."""
    return returncode if returncode >= 0 else 128 - returncode


def _write_output(descriptor: int, data: bytes) -> None:
    """Writes to an own stream. Raises BrokenPipeError without a reader, else `LabError`."""
    try:
        write_all(descriptor, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LabError(f"the output can't be written: {error.strerror}") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes, however few the descriptor takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def forwarding_input(send: Callable[[bytes], bool], end: Callable[[], None]) -> Iterator[None]:
    """Passes on standard input, from a thread of its own, until this context or the input ends.

    send: returns whether more is wanted. end: called at the end of the input.
    """
    ended, end_thread = os.pipe()

    def run() -> None:
        with suppress(LabError):  # the output's reader gets the error of a dead guest
            while sys.stdin is not None:  # it is None if descriptor 0 was closed at the start
                ready, _, _ = select.select([_STDIN, ended], [], [])
                if ended in ready:
                    return
                try:
                    data = os.read(_STDIN, _READ_BYTES)
                except OSError:  # a folder, or a terminal that is gone or not ours
                    data = b""
                if not data:
                    break
                if not send(data):
                    return
            end()

    thread = threading.Thread(target=run, name="input", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(end_thread)
        thread.join()
        os.close(ended)


@contextmanager
def handling_signals(
    number: signal.Signals,
    handle: Callable[[], None],
    next_handler: Callable[[int, FrameType | None], object] | None = None,
) -> Iterator[None]:
    """Calls `handle` for each of these signals, from a thread of its own.

    next_handler: the handler after the first signal. Default: the same.
    """
    # A signal's handler may interrupt a holder of the link's lock, so it only wakes the thread.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)

    def run() -> None:
        with suppress(LabError):
            while os.read(woken, _READ_BYTES):
                handle()

    def signalled(_number: int, _frame: FrameType | None) -> None:
        if next_handler is not None:
            signal.signal(number, next_handler)
        with suppress(BlockingIOError):
            os.write(wake, b"s")

    previous_handler = signal.signal(number, signalled)
    thread = threading.Thread(target=run, name=number.name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(number, previous_handler)
        os.close(wake)
        thread.join()
        os.close(woken)


@contextmanager
def _forwarding_interrupts_to(command: Command) -> Iterator[None]:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job in the background
        yield
        return
    interrupt = partial(command.signal, signal.SIGINT)
    with handling_signals(signal.SIGINT, interrupt, next_handler=signal.default_int_handler):
        yield
