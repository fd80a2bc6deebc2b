"""The `guest` machine: a QEMU guest with a real Linux kernel and this computer's programs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from pmemlab.errors import (
    LabError,
    MachineDiedError,
    Mismatch,
    MissingRequirementError,
    ProvisionError,
)
from pmemlab.machines.boot import POWER_CUT, STOPPED, Boot, Uptime
from pmemlab.machines.capacity import EMULATOR_BYTES, media_bytes, missing_memory, missing_space
from pmemlab.machines.guest.accelerator import choose_accelerator
from pmemlab.machines.guest.host_files import HostFiles, compile_packages, package_folders
from pmemlab.machines.guest.initramfs import find_busybox, write_initramfs
from pmemlab.machines.guest.kernel import Kernel, get_kernel, kernel_source
from pmemlab.machines.guest.link import Link
from pmemlab.machines.guest.options import RESULTS, RESULTS_TAG, GuestOptions
from pmemlab.machines.guest.qemu import Qemu, command_line, find_qemu, find_setpriv
from pmemlab.machines.guest.requirements import unmet_requirements
from pmemlab.machines.guest.sandbox import sandbox_arguments
from pmemlab.machines.guest.shares import foreign_site_folders, guest_root, shared_folders
from pmemlab.machines.linked import LinkedMachine
from pmemlab.machines.protocol import Accelerator, Booting
from pmemlab.machines.state_folder import StateFolder
from pmemlab.proof import Proof, find_fact, mismatches, prove, read_facts
from pmemlab.topology import Topology

__all__ = [
    "PROGRAM_PATH",
    "GuestMachine",
    "open_guest_machine",
    "qemu_command",
    "requirements",
    "write_guest_initramfs",
]

# Long, because seven guests that start at once without KVM share the host's cores.
_BOOT_LIMIT_S = 180.0
_PROVISION_LIMIT_S = 180.0
_SIGNALS_EVERY_S = 0.5
_AGENT = Path(__file__).with_name("agent.py")
# Programs of the topologies' provisioning and of `pmemlab machine show`, with their packages.
# Guests run this computer's programs, so they must be installed here.
_PROGRAMS = {
    "ndctl": "ndctl",
    "daxctl": "daxctl",
    "numactl": "numactl",
    "mkfs.ext4": "e2fsprogs",
    "dmsetup": "dmsetup",
}
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def requirements(topology: Topology) -> list[MissingRequirementError]:
    """Returns what this computer lacks for a guest of this topology. Starts nothing."""
    missing = []
    for check in (find_qemu, find_setpriv, find_busybox, kernel_source):
        try:
            check()
        except MissingRequirementError as error:
            missing.append(error)
    for program, package in _PROGRAMS.items():
        if not shutil.which(program, path=PROGRAM_PATH):
            missing.append(MissingRequirementError(program, f"apt-get install {package}"))
    if not missing:  # else QEMU or the kernel is missing
        missing += unmet_requirements(topology, find_qemu(), kernel_source().release)
    missing += missing_memory(topology.memory_bytes + EMULATOR_BYTES, topology.name)
    missing += _missing_media_space(topology, Path(tempfile.gettempdir()))
    return missing


def _missing_media_space(topology: Topology, folder: Path) -> Iterable[MissingRequirementError]:
    purpose, remedy = f"the media of {topology.name}", "make room, or set TMPDIR or --state-dir"
    return missing_space(folder, media_bytes(topology), purpose, remedy)


def open_guest_machine(
    topology: Topology,
    state: Path | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    options: GuestOptions = GuestOptions(),  # noqa: B008 - it is frozen
    on_boot: Callable[[Booting], None] = lambda _: None,
) -> GuestMachine:
    """Boots a guest, provisions it and proves it.

    state: an existing folder for its backing files and its console's log; `stop` removes these
        files. Default: a temporary folder of its own.
    on_step: gets the current step, for progress displays.
    options: the user's changes to the topology.
    on_boot: gets the guest just before it boots.

    Raises `MissingRequirementError`, `MachineDiedError`, `ProvisionError` or `ProofError`.
    """
    machine = GuestMachine(topology, state, options)
    try:
        machine.start(on_step, on_boot)
    except BaseException:
        machine.stop()
        raise
    return machine


def qemu_command(
    topology: Topology,
    options: GuestOptions,
    kernel: Kernel,
    accelerator: Accelerator,
    initramfs: Path,
    state: Path,
    port: str,
) -> list[str]:
    """Returns QEMU's command line for a guest.

    topology: with the options applied. initramfs: written by `write_guest_initramfs`. Other
        arguments: see `command_line`. Raises `LabError`.
    """
    results = options.results_share()
    return command_line(
        topology,
        kernel,
        initramfs,
        accelerator,
        state,
        # -S -E: no site-packages, no environment
        [sys.executable, "-S", "-E", str(_AGENT)],
        port,
        shares=[*shared_folders(), *([results] if results else [])],
        extra_arguments=[*sandbox_arguments(find_qemu()), *options.qemu_arguments],
    )


def write_guest_initramfs(path: Path, kernel: Kernel) -> None:
    write_initramfs(path, kernel, guest_root(shared_folders()))


class GuestMachine(LinkedMachine):
    """A guest. `open_guest_machine` returns one that is started and proved.

    unproved: the facts that differ from the topology's demands. Only a guest with QEMU arguments of
        the user's may have some.

    `_powered` guards `_boot` and `_stopped`, and signals a new boot.
    """

    kind: Literal["guest"] = "guest"

    def __init__(
        self,
        topology: Topology,
        state: Path | None = None,
        options: GuestOptions = GuestOptions(),  # noqa: B008 - it is frozen
    ) -> None:
        options.results_share()  # reports errors before anything starts
        self._options = options
        self.topology = topology = options.applied_to(topology)
        self.accelerator: Accelerator = "tcg"
        self.python = sys.executable
        self._state = StateFolder(state, False) if state else StateFolder.temporary()
        # Not in a given folder: a container's is in memory, which the media need.
        self._boot_files = StateFolder.temporary() if state else self._state
        self._qemu_argv: Callable[[str], Sequence[str]] | None = None
        self._powered = threading.Condition()
        self._boot: Boot[Qemu] | None = None
        self._stopped = False
        self._proof: Proof | None = None
        self.unproved: list[Mismatch] = []
        self._host_files = HostFiles(package_folders())

    @property
    def proof(self) -> Proof:
        assert self._proof is not None, "the machine is not started"
        return self._proof

    @property
    def pid(self) -> int:
        """The process id of QEMU; after a power cut, of the last boot."""
        return self._last_boot().emulator.pid

    @property
    def link(self) -> Link:
        """The link to its agent. Raises `MachineDiedError` if the guest was stopped or cut."""
        return self._last_boot().link

    def start(self, on_step: Callable[[str], None], on_boot: Callable[[Booting], None]) -> None:
        """Boots on new media, provisions and proves. For the arguments see `open_guest_machine`."""
        qemu = find_qemu()
        on_step("looking for a kernel")
        kernel = get_kernel()
        for missing in unmet_requirements(self.topology, qemu, kernel.release):
            raise missing
        compile_packages(package_folders())
        initramfs = self._boot_files.path / "initramfs"
        write_guest_initramfs(initramfs, kernel)
        on_step("choosing KVM or TCG")
        self.accelerator = choose_accelerator(kernel, qemu)
        self._qemu_argv = partial(
            qemu_command,
            self.topology,
            self._options,
            kernel,
            self.accelerator,
            initramfs,
            self._state.path,
        )
        self._make_backing_files()
        on_boot(Booting(self.accelerator, self.stop))
        self._power_on(on_step, new_media=True)

    def power_on(self) -> None:
        self._last_boot().uptime.check_ended()
        self._power_on(lambda _: None, new_media=not self.topology.keeps_media)

    def _power_on(self, on_step: Callable[[str], None], *, new_media: bool) -> None:
        boot = None
        try:
            seconds: dict[str, float] = {}
            started = time.monotonic()
            on_step(f"booting on {self.accelerator.upper()}")
            boot = self._new_boot()
            boot.link.wait_hello(_BOOT_LIMIT_S)
            seconds["boot"] = time.monotonic() - started

            started = time.monotonic()
            self._provision(on_step, new_media=new_media)
            seconds["provision"] = time.monotonic() - started

            started = time.monotonic()
            on_step("proving it")
            facts = read_facts(self)
            proved = self._prove(facts)
            seconds["proof"] = time.monotonic() - started
        except BaseException as error:
            if boot is not None:
                boot.end(f"did not come up: {error}")
            raise
        boot.was_proved = True
        rounded = {step: round(value, 2) for step, value in seconds.items()}
        self._proof = Proof(self.topology.name, self.accelerator, facts, proved, rounded)

    def _new_boot(self) -> Boot[Qemu]:
        name = self.topology.name
        with self._powered:
            if self._stopped:
                raise MachineDiedError(f"guest {name} {STOPPED}")
            self._boot = Boot(f"guest {name}", self._start_qemu)
            self._powered.notify_all()
            return self._boot

    def _start_qemu(self, port: socket.socket) -> Qemu:
        assert self._qemu_argv is not None, "the machine is not started"
        argv = self._qemu_argv(f"fd={port.fileno()}")
        return Qemu(self.topology.name, argv, self._state.path, port)

    def _last_boot(self) -> Boot[Qemu]:
        with self._powered:
            assert self._boot is not None, "the machine is not started"
            return self._boot

    def _provision(self, on_step: Callable[[str], None], *, new_media: bool) -> None:
        if self._options.results is not None:
            self._mount_results()
        for command in self.topology.provision_commands(new_media=new_media):
            on_step(command)
            done = self.run(["/bin/sh", "-ec", command], timeout=_PROVISION_LIMIT_S)
            if done.returncode:
                output = f"{done.stdout}\n{done.stderr}".strip()
                raise ProvisionError(
                    f"guest {self.topology.name}: {command!r} ended with status "
                    f"{done.returncode}: {output}"
                )

    def _mount_results(self) -> None:
        options = "trans=virtio,version=9p2000.L,cache=mmap,msize=512000"
        mount = f"mkdir -p {RESULTS} && mount -t 9p -o {options} {RESULTS_TAG} {RESULTS}"
        done = self.run(["/bin/sh", "-ec", mount], timeout=_PROVISION_LIMIT_S)
        if done.returncode:
            raise LabError(f"guest {self.topology.name}: {RESULTS} can't be mounted: {done.stderr}")

    def _make_backing_files(self) -> None:
        """Makes sparse files: parts that the guest never writes take no room."""
        for missing in _missing_media_space(self.topology, self._state.path):
            raise missing
        for name, size in self.topology.backing_files.items():
            with (self._state.path / f"{name}.img").open("wb") as file:
                file.truncate(size)

    def _uptime(self) -> Uptime:
        return self._last_boot().uptime

    def _link_for(self, argv: Sequence[str]) -> Link:
        """Returns a link to a guest that sees all edits made here since its last command."""
        link = self.link
        if self._host_files.has_changed(argv):
            link.refresh()
        return link

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
        self._proof = replace(self.proof, facts=facts, proved=self._prove(facts))

    def _prove(self, facts: Mapping[str, object]) -> dict[str, object]:
        if not self._options.qemu_arguments:
            return prove(self.topology, facts)
        self.unproved = mismatches(self.topology, facts)
        differing = {mismatch.fact for mismatch in self.unproved}
        return {n: find_fact(facts, n) for n in self.topology.proof if n not in differing}

    def power_cut(self) -> None:
        self._last_boot().end(POWER_CUT)

    def wait_ended(self) -> LabError:
        """Waits until the guest ends other than by a power cut, and returns the error that says
        how.

        A guest that didn't come up again keeps its media, and may be switched on again.
        """
        while True:
            boot = self._last_boot()
            boot.wait_ended()
            reason = boot.uptime.end_reason
            if reason == STOPPED or (boot.was_proved and reason != POWER_CUT):
                return boot.death_error("ended by itself")
            with self._powered:
                while self._boot is boot and not self._stopped:
                    # Limits the wait: of two signals that came together, Python 3.11 has shown
                    # neither to a thread in an endless wait.
                    self._powered.wait(_SIGNALS_EVERY_S)
            if self._stopped:
                return boot.death_error(STOPPED)

    def stop(self) -> None:
        with self._powered:
            self._stopped = True
            self._powered.notify_all()
            boot = self._boot
        if boot is not None:
            boot.end(STOPPED)
        images = (f"{name}.img" for name in self.topology.backing_files)
        self._state.release(*images, "console.log", "qemu.log")
        self._boot_files.release()
