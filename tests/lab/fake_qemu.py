"""A guest without QEMU: a process that stands in for QEMU and runs the real guest agent.

The agent's commands run on this computer, so its topology must have no provisioning commands.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pmemlab.machines.guest.control import ControlServer
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.guest.machine import GuestMachine, open_guest_machine
from pmemlab.topology import Topology

CONSOLE = "[    0.000000] a kernel's last words"

LIMIT_S = 120.0
"""Time limit for operations that normally end at once: only a failing test waits this long."""
_LAB = Path(__file__).parents[2] / "lab"
# sh starts Python, as an interpreter's path after "#!" can't contain a space. To Python, the lines
# for sh are a string.
_PROGRAM = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
import re, sys
sys.path.insert(0, {str(_LAB)!r})
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.agent import Agent

agent.DROPS_CACHES = "/dev/null"  # only root may drop this computer's caches
line = " ".join(sys.argv)
console_path = re.search("file,id=console,path=(.+?) -serial ", line)[1].replace(",,", ",")
with open(console_path, "w") as console:
    console.write({CONSOLE!r})
Agent(int(re.search("socket,id=agent,fd=([0-9]+)", line)[1])).serve()
"""

THIS_COMPUTER = Topology("fake", "a guest that is this computer", {"kernel": os.uname().release})


def program_that_logs_its_arguments(file: Path) -> str:
    """Returns a program that also writes the arguments a guest is started with to a file, one per
    line."""
    tell = f'if "-smp" in sys.argv: open({str(file)!r}, "w").write("\\n".join(sys.argv))\n'
    return _PROGRAM.replace("line =", f"{tell}line =", 1)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str = _PROGRAM) -> None:
    """Replaces `qemu-system-x86_64` by the program; guests then need no kernel.

    folder: also gets all temporary files, those of guests included.
    """
    qemu = folder / "bin" / "qemu-system-x86_64"
    qemu.parent.mkdir(exist_ok=True)
    qemu.write_text(program)
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{qemu.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    kernel = Kernel("6.1.0-fake", folder / "vmlinux", folder)
    monkeypatch.setattr("pmemlab.machines.guest.machine.get_kernel", lambda: kernel)
    monkeypatch.setattr("pmemlab.machines.guest.machine.write_initramfs", _write_nothing)
    monkeypatch.setattr("pmemlab.machines.guest.machine.choose_accelerator", lambda *_: "tcg")


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[GuestMachine]:
    """Starts a guest and serves it in the folder, as `pmemlab machine serve` does."""
    install(monkeypatch, folder)
    with open_guest_machine(THIS_COMPUTER) as machine, ControlServer(folder, machine):
        yield machine


def _write_nothing(path: Path, *_: object) -> None:
    path.touch()


def qemu_of(folder: Path, script: str) -> str:
    """Writes a shell script that stands in for QEMU, and returns its path."""
    program = folder / "qemu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def controlled_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Returns a function that advances the clock of commands' time limits by some seconds."""
    passed = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr("pmemlab.machines.guest.link.time", clock)
    return pass_time


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Returns whether a process is running; a zombie is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
