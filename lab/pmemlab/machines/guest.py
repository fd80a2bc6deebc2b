"""The `guest` machine: a QEMU guest with a real Linux kernel and this computer's programs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from pmemlab.errors import (
    LabError,
    MachineDiedError,
    MissingRequirementError,
    ProvisionError,
)
from pmemlab.guest.accelerator import choose_accelerator
from pmemlab.guest.host_files import HostFiles, package_folders
from pmemlab.guest.initramfs import find_busybox, get_initramfs
from pmemlab.guest.kernel import get_kernel, kernel_release, kernel_source
from pmemlab.guest.link import Command, Link
from pmemlab.guest.qemu import Qemu, command_line, find_qemu, find_setpriv
from pmemlab.guest.requirements import unmet_requirements
from pmemlab.guest.sandbox import sandbox_arguments
from pmemlab.guest.shares import foreign_site_folders, guest_root, shared_folders
from pmemlab.machines.facts import read_facts
from pmemlab.machines.guest_options import RESULTS, RESULTS_TAG, GuestOptions
from pmemlab.machines.protocol import Accelerator, Result
from pmemlab.machines.room import EMULATOR_BYTES, media_bytes, missing_disk, missing_memory
from pmemlab.machines.state_folder import StateFolder
from pmemlab.proof import Proof, prove
from pmemlab.topology import Topology

__all__ = ["PROGRAM_PATH", "GuestMachine", "agent_command", "open_guest_machine", "requirements"]

# Generous: seven guests that start at once without KVM share the host's cores.
_BOOT_LIMIT_S = 180.0
_PROVISION_LIMIT_S = 180.0
_AGENT = Path(__file__).parent.parent / "guest" / "agent.py"
# Programs of the topologies' provisioning and of `pmemlab show`, with the packages that have them.
# A guest's programs are this computer's, so they must be here.
_PROGRAMS = {
    "ndctl": "ndctl",
    "daxctl": "daxctl",
    "numactl": "numactl",
    "mkfs.ext4": "e2fsprogs",
    "dmsetup": "dmsetup",
}
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def requirements(topology: Topology) -> list[MissingRequirementError]:
    """What this computer lacks for a guest of this topology. Downloads and starts nothing."""
    missing = []
    for check in (find_qemu, find_setpriv, find_busybox, kernel_source):
        try:
            check()
        except MissingRequirementError as error:
            missing.append(error)
    for program, package in _PROGRAMS.items():
        if not shutil.which(program, path=PROGRAM_PATH):
            missing.append(MissingRequirementError(program, f"apt-get install {package}"))
    if not missing:  # else neither is there to be too old
        missing += unmet_requirements(topology, find_qemu(), kernel_release())
    missing += missing_memory(topology.memory_bytes + EMULATOR_BYTES, topology.name)
    missing += missing_disk(media_bytes(topology), f"the media of {topology.name}")
    return missing


def open_guest_machine(
    topology: Topology,
    state: Path | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    options: GuestOptions = GuestOptions(),  # noqa: B008 - it is frozen
) -> GuestMachine:
    """Boot a guest, provision it and prove it.

    state: an existing folder for its backing files and its console's log; what is put there is
        removed by `stop`. Default: a temporary folder of its own.
    on_step: told what is being done, for progress displays.
    options: what the user wants otherwise than the topology has it.

    Raises `MissingRequirementError`, `MachineDiedError`, `ProvisionError` or `ProofError`.
    """
    machine = GuestMachine(topology, state, options)
    try:
        machine.start(on_step)
    except BaseException:
        machine.stop()
        raise
    return machine


def agent_command(python: str) -> list[str]:
    """The guest's first process."""
    # -S -E: nothing of site-packages, nothing of the environment
    return [python, "-S", "-E", str(_AGENT)]


class GuestMachine:
    """A guest. `open_guest_machine` makes one that is started and proved."""

    kind: Literal["guest"] = "guest"

    def __init__(
        self,
        topology: Topology,
        state: Path | None = None,
        options: GuestOptions = GuestOptions(),  # noqa: B008 - it is frozen
    ) -> None:
        self._results = options.results_share()
        self._qemu_arguments = options.qemu_arguments
        self.topology = topology = options.applied_to(topology)
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
        shares = shared_folders()
        initramfs = get_initramfs(kernel, guest_root(shares))
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
                agent_command(self.python),
                f"fd={theirs.fileno()}",
                shares=[*shares, *([self._results] if self._results else [])],
                further=[*sandbox_arguments(qemu), *self._qemu_arguments],
            )
            self._qemu = Qemu(self.topology.name, argv, self._state.path, theirs)
            self._link = Link(ours.dup(), self.died)
        self._link.wait_hello(_BOOT_LIMIT_S)
        seconds["boot"] = time.monotonic() - started

        started = time.monotonic()
        if self._results:
            self._mount_results()
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
        facts = read_facts(self)
        proved = prove(self.topology, facts)
        seconds["proof"] = time.monotonic() - started
        rounded = {step: round(value, 2) for step, value in seconds.items()}
        self._proof = Proof(self.topology.name, self.accelerator, facts, proved, rounded)

    def _mount_results(self) -> None:
        options = "trans=virtio,version=9p2000.L,cache=mmap,msize=512000"
        mount = f"mkdir -p {RESULTS} && mount -t 9p -o {options} {RESULTS_TAG} {RESULTS}"
        done = self.run(["/bin/sh", "-ec", mount], timeout=_PROVISION_LIMIT_S)
        if done.returncode:
            raise LabError(f"guest {self.topology.name}: {RESULTS} can't be mounted: {done.stderr}")

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Result:
        self._refresh(argv)
        return self.link.run(argv, self._environment(env or {}), timeout)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        terminal: Mapping[str, int] | None = None,
    ) -> Command:
        """Start a command, whose output then comes as a stream; else as `run`.

        terminal: "rows" and "columns" of the terminal that it is to run on. Default: on none.
        """
        self._refresh(argv)
        return self.link.spawn(argv, self._environment(env), terminal)

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
        python_path = [folder.parent for folder in package_folders()] + foreign_site_folders()
        return {
            "PATH": PROGRAM_PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, python_path))),
            **self.topology.environment,
            **env,
        }

    def facts(self) -> Mapping[str, object]:
        return self.proof.facts

    def prove(self) -> None:
        facts = read_facts(self)
        self._proof = replace(self.proof, facts=facts, proved=prove(self.topology, facts))

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
