"""The `guest` machine: a QEMU guest with a real Linux kernel, on this computer's own root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from pmemlab.errors import LabError, MachineDiedError, ProvisionError
from pmemlab.guest.accelerator import choose_accelerator
from pmemlab.guest.host_files import HostFiles, package_folders
from pmemlab.guest.initramfs import get_initramfs
from pmemlab.guest.kernel import get_kernel
from pmemlab.guest.link import Command, Link
from pmemlab.guest.qemu import Qemu, command_line, find_qemu
from pmemlab.guest.requirements import unmet_requirements
from pmemlab.machines.protocol import Accelerator, Result
from pmemlab.machines.state_folder import StateFolder
from pmemlab.proof import Proof, probe_command, prove
from pmemlab.topology import Topology

__all__ = ["GuestMachine", "open_guest_machine"]

# Generous: seven guests that start at once without KVM share the host's cores.
_BOOT_LIMIT_S = 180.0
_PROVISION_LIMIT_S = 180.0
_AGENT = Path(__file__).parent.parent / "guest" / "agent.py"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def open_guest_machine(
    topology: Topology,
    state: Path | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> GuestMachine:
    """Boot a guest, provision it and prove it.

    state: an existing folder for its backing files and its console's log; what is put there is
        removed by `stop`. Default: a temporary folder of its own.
    on_step: told what is being done, for progress displays.

    Raises `MissingRequirementError`, `MachineDiedError`, `ProvisionError` or `ProofError`.
    """
    machine = GuestMachine(topology, state)
    try:
        machine.start(on_step)
    except BaseException:
        machine.stop()
        raise
    return machine


class GuestMachine:
    """A guest. `open_guest_machine` makes one that is started and proved."""

    kind: Literal["guest"] = "guest"

    def __init__(self, topology: Topology, state: Path | None = None) -> None:
        self.topology = topology
        self.accelerator: Accelerator = "tcg"
        self.python = sys.executable
        self._state = StateFolder(state, False) if state else StateFolder.temporary()
        self._qemu: Qemu | None = None
        self._link: Link | None = None
        self._proof: Proof | None = None
        self._end = "is stopped"  # what is said of it once it is down by our own hand
        self._down = False
        self._host_files = HostFiles(package_folders())

    @property
    def proof(self) -> Proof:
        assert self._proof is not None, "the machine is not started"
        return self._proof

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        assert self._qemu is not None, "the machine is not started"
        return self._qemu.pid

    @property
    def link(self) -> Link:
        """The way to its agent. Raises `MachineDiedError` where it was stopped or cut."""
        if self._link is None or self._down:
            raise MachineDiedError(f"guest {self.topology.name} {self._end}")
        return self._link

    def start(self, on_step: Callable[[str], None]) -> None:
        """Boot, provision, prove."""
        seconds: dict[str, float] = {}
        qemu = find_qemu()
        on_step("looking for a kernel")
        kernel = get_kernel()
        for missing in unmet_requirements(self.topology, qemu, kernel.release):
            raise missing
        initramfs = get_initramfs(kernel)
        on_step("choosing KVM or TCG")
        self.accelerator = choose_accelerator(kernel, qemu)

        started = time.monotonic()
        on_step(f"booting on {self.accelerator.upper()}")
        self._make_backing_files()
        ours, theirs = socket.socketpair()
        with ours:
            argv = command_line(
                self.topology,
                kernel,
                initramfs,
                self.accelerator,
                self._state.path,
                # -S -E: nothing of site-packages, nothing of the environment
                [self.python, "-S", "-E", str(_AGENT)],
                theirs.fileno(),
            )
            self._qemu = Qemu(self.topology.name, argv, self._state.path, theirs)
            self._link = Link(ours.dup(), self.died)
        self._link.wait_hello(_BOOT_LIMIT_S)
        seconds["boot"] = time.monotonic() - started

        started = time.monotonic()
        for command in self.topology.provision:
            on_step(command)
            done = self.run(["/bin/sh", "-ec", command], timeout=_PROVISION_LIMIT_S)
            if done.returncode:
                output = f"{done.stdout}\n{done.stderr}".strip()
                raise ProvisionError(
                    f"guest {self.topology.name}: {command!r} ended with status "
                    f"{done.returncode}: {output}"
                )
        seconds["provision"] = time.monotonic() - started

        started = time.monotonic()
        on_step("proving it")
        done = self.run(probe_command(self.topology, self.python), timeout=_PROVISION_LIMIT_S)
        if done.returncode:
            raise LabError(f"guest {self.topology.name}: its facts can't be read: {done.stderr}")
        facts = json.loads(done.stdout)
        proved = prove(self.topology, facts)
        seconds["proof"] = time.monotonic() - started
        rounded = {step: round(value, 2) for step, value in seconds.items()}
        self._proof = Proof(self.topology.name, self.accelerator, facts, proved, rounded)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Result:
        self._refresh(argv)
        return self.link.run(argv, self._environment(env or {}), timeout)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str]) -> Command:
        """Start a command, whose output then comes as a stream; else as `run`."""
        self._refresh(argv)
        return self.link.spawn(argv, self._environment(env))

    def _make_backing_files(self) -> None:
        """Sparse: what the guest never writes takes no room."""
        sizes = self.topology.backing_files
        free = shutil.disk_usage(self._state.path).free
        if free < sum(sizes.values()):
            raise LabError(
                f"{self._state.path}: {free >> 20} MiB are free, but the media of "
                f"{self.topology.name} may take {sum(sizes.values()) >> 20} MiB; "
                "make room, or set TMPDIR or give --state-dir elsewhere"
            )
        for name, size in sizes.items():
            with (self._state.path / f"{name}.img").open("wb") as file:
                file.truncate(size)

    def _refresh(self, argv: Sequence[str]) -> None:
        """Let the guest see what was edited here since its last command."""
        if self._host_files.changed(argv):
            self.link.refresh()

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(str(f.parent) for f in package_folders())),
            **self.topology.environment,
            **env,
        }

    def facts(self) -> Mapping[str, object]:
        return self.proof.facts

    def power_cut(self) -> None:
        if self._qemu is not None and not self._down:
            self._qemu.kill()
            self._end = "has had its power cut"
            self._down = True

    def stop(self) -> None:
        if self._qemu is not None:
            self._qemu.kill()
        if self._link is not None:
            self._link.close()
        self._down = True
        images = (f"{name}.img" for name in self.topology.backing_files)
        self._state.release(*images, "console.log", "qemu.log")

    def died(self, how: str) -> LabError:
        """The error for its death, found out in this way."""
        if self._down:
            return MachineDiedError(f"guest {self.topology.name} {self._end}")
        assert self._qemu is not None
        return self._qemu.died(how)

    def __enter__(self) -> GuestMachine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
