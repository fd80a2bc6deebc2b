"""A guest without QEMU: a process that the lab takes for one, in which the real agent runs.

The agent's commands run on this computer, so a topology for it must provision nothing.
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
"""For what takes no time: only a test that fails waits so long, on a busy computer too."""
_LAB = Path(__file__).parents[2] / "lab"
# A shell finds Python, since the path after "#!" may have no space in it; Python sees a text there.
_PROGRAM = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
import re, sys
sys.path.insert(0, {str(_LAB)!r})
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.agent import Agent

agent.DROPS_CACHES = "/dev/null"  # those of this computer stay, as only root may drop them
line = " ".join(sys.argv)
console_path = re.search("file,id=console,path=(.+?) -serial ", line)[1].replace(",,", ",")
with open(console_path, "w") as console:
    console.write({CONSOLE!r})
Agent(int(re.search("socket,id=agent,fd=([0-9]+)", line)[1])).serve()
"""

TRUE_HERE = Topology("played", "a guest that is this computer", {"kernel": os.uname().release})


def program_that_tells(file: Path) -> str:
    """The program, which also writes the arguments of a guest's start to a file, one a line."""
    tell = f'if "-smp" in sys.argv: open({str(file)!r}, "w").write("\\n".join(sys.argv))\n'
    return _PROGRAM.replace("line =", f"{tell}line =", 1)


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str = _PROGRAM) -> None:
    """From now on `qemu-system-x86_64` is the program, and guests need no kernel.

    folder: also where temporary files go, as guests' own.
    """
    qemu = folder / "bin" / "qemu-system-x86_64"
    qemu.parent.mkdir(exist_ok=True)
    qemu.write_text(program)
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{qemu.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    kernel = Kernel("6.1.0-played", folder / "vmlinux", folder)
    monkeypatch.setattr("pmemlab.machines.guest.machine.get_kernel", lambda: kernel)
    monkeypatch.setattr("pmemlab.machines.guest.machine.write_initramfs", _write_nothing)
    monkeypatch.setattr("pmemlab.machines.guest.machine.choose_accelerator", lambda *_: "tcg")


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[GuestMachine]:
    """A guest that is served in the folder, as by `pmemlab machine serve`."""
    play(monkeypatch, folder)
    with open_guest_machine(TRUE_HERE) as machine, ControlServer(folder, machine):
        yield machine


def _write_nothing(path: Path, *_: object) -> None:
    path.touch()


def qemu_of(folder: Path, script: str) -> str:
    """Returns the path of a program in QEMU's place, which does what a shell's script says."""
    program = folder / "qemu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def time_that_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Returns a function after whose call so many seconds more have passed for commands."""
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
    """Whether a process lives; one that has ended and waits to be collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
