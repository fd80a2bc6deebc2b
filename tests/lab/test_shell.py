"""A terminal in a guest. QEMU is a fake; the terminals are real."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from fcntl import ioctl
from pathlib import Path

import fake_qemu
import pytest
from fake_qemu import LIMIT_S

from pmemlab.machines.guest.control import ControlServer, attach
from pmemlab.machines.guest.link import Command
from pmemlab.machines.guest.machine import GuestMachine, open_guest_machine

LAB = Path(__file__).parents[2] / "lab"
SIZE = {"rows": 31, "columns": 97}

Spawn = Callable[[list[str]], Command]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GuestMachine]:
    fake_qemu.install(monkeypatch, tmp_path)
    with open_guest_machine(fake_qemu.THIS_COMPUTER) as machine:
        yield machine


@pytest.fixture(params=["owner", "client"])
def spawn(request: pytest.FixtureRequest, machine: GuestMachine, tmp_path: Path) -> Iterator[Spawn]:
    """Returns a function that starts a command on a terminal, as the guest's owner or as a client
    of `pmemlab machine serve`."""
    if request.param == "owner":
        yield lambda argv: machine.spawn(argv, {}, SIZE)
        return
    with ControlServer(tmp_path, machine), attach(tmp_path) as link:
        yield lambda argv: link.spawn(argv, {}, SIZE)


def _until(output: Iterator[tuple[int, bytes]], wanted: bytes) -> bytes:
    """Reads output until it contains the wanted bytes, and returns it."""
    seen = b""
    for _, data in output:
        seen += data
        if wanted in seen:
            return seen
    raise AssertionError(f"expected {wanted!r}, got {seen!r}")


def test_a_command_has_a_terminal_of_the_requested_size(spawn: Spawn) -> None:
    command = spawn(["sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size"])
    _until(command.output(LIMIT_S), b"31 97")


def test_typed_input_arrives(spawn: Spawn) -> None:
    command = spawn(["sh", "-c", "stty -echo; echo ready; read line; echo got $line; exit 5"])
    output = command.output(LIMIT_S)
    _until(output, b"ready")
    command.type(b"abc\n")
    _until(output, b"got abc\r\n")
    assert [*output] == []
    assert command.returncode == 5


def test_ctrl_c_interrupts_the_command_and_not_the_guest(
    spawn: Spawn, machine: GuestMachine
) -> None:
    command = spawn(
        ["sh", "-c", "trap 'echo interrupted; exit 3' INT; echo ready; sleep 60 & wait"]
    )
    output = command.output(LIMIT_S)
    _until(output, b"ready")
    command.type(b"\x03")
    _until(output, b"interrupted\r\n")
    assert [*output] == []
    assert command.returncode == 3
    assert machine.run(["echo", "alive"]).stdout == "alive\n"


def test_resizing_the_terminal_signals_the_command(spawn: Spawn) -> None:
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done"
    command = spawn(["bash", "-c", script])
    output = command.output(LIMIT_S)
    _until(output, b"ready")
    command.resize({"rows": 50, "columns": 120})
    _until(output, b"50 120")


def test_large_typed_input_is_not_lost(spawn: Spawn) -> None:
    command = spawn(["sh", "-c", "stty raw -echo; echo ready; head -c 300000 | sha256sum"])
    output = command.output(LIMIT_S)
    _until(output, b"ready")
    command.type(b"x" * 300_000)
    digest = subprocess.run(["sha256sum"], input=b"x" * 300_000, capture_output=True, check=True)
    _until(output, digest.stdout[:64])


def test_keys_for_a_command_without_a_terminal_are_ignored(machine: GuestMachine) -> None:
    command = machine.spawn(["sh", "-c", "sleep 0.3; echo done"], {})
    command.type(b"keys")
    command.resize(SIZE)
    assert b"".join(data for _, data in command.output(LIMIT_S)) == b"done\n"


def test_leaving_a_shell_ends_the_processes_that_it_started(spawn: Spawn) -> None:
    script = "echo $$; exec sleep 60"
    command = spawn(["sh", "-c", script])
    with closing(command.output(LIMIT_S)) as output:
        pid = int(_until(output, b"\n"))
    fake_qemu.wait_until(lambda: not fake_qemu.is_running(pid))


class _Terminal:
    """`pmemlab machine shell` on its own terminal, and the user's end of that terminal."""

    def __init__(self, state: Path, command: str) -> None:
        self.ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.end = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pmemlab", "machine", "shell", "--state-dir", state, "--",
             "sh", "-c", command],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{LAB}:{os.environ.get('PYTHONPATH', '')}"},
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def read_until(self, wanted: bytes) -> None:
        seen = b""
        deadline = time.monotonic() + LIMIT_S
        while wanted not in seen:
            ready, _, _ = select.select([self.ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"expected {wanted!r}, got {seen!r}"
            seen += os.read(self.ours, 4096)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.end)


@pytest.fixture
def on_terminal(machine: GuestMachine, tmp_path: Path) -> Iterator[Callable[[str], _Terminal]]:
    opened: list[_Terminal] = []

    def open_one(command: str) -> _Terminal:
        opened.append(_Terminal(tmp_path, command))
        return opened[-1]

    with ControlServer(tmp_path, machine):
        yield open_one
    for terminal in opened:
        terminal.close()


def test_the_user_s_terminal_passes_input_output_and_size_to_the_guest(
    on_terminal: Callable[[str], _Terminal],
) -> None:
    terminal = on_terminal(
        "trap 'stty size' WINCH; stty size; until read line; do :; done; echo $line; exit 9"
    )
    terminal.read_until(b"20 60")
    ioctl(terminal.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 66, 0, 0))
    terminal.read_until(b"25 66")
    os.write(terminal.ours, b"typed\r")
    terminal.read_until(b"typed\r\ntyped")
    assert terminal.process.wait(LIMIT_S) == 9
    assert termios.tcgetattr(terminal.end) == terminal.before


def test_ctrl_c_goes_to_the_guest_and_not_to_pmemlab(
    on_terminal: Callable[[str], _Terminal],
) -> None:
    terminal = on_terminal("trap 'echo interrupted; exit 4' INT; echo ready; sleep 60 & wait")
    terminal.read_until(b"ready")
    os.write(terminal.ours, b"\x03")
    terminal.read_until(b"interrupted")
    assert terminal.process.wait(LIMIT_S) == 4


def test_the_terminal_is_restored_when_the_guest_dies(
    on_terminal: Callable[[str], _Terminal], machine: GuestMachine
) -> None:
    terminal = on_terminal("echo ready; sleep 60")
    terminal.read_until(b"ready")
    os.kill(machine.pid, signal.SIGKILL)
    assert terminal.process.wait(LIMIT_S) == 2
    assert termios.tcgetattr(terminal.end) == terminal.before
