"""The `guest` machine: a QEMU guest with a real Linux kernel, on this computer's own root."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from pmemlab.errors import LabError, MachineDiedError, ProvisionError
from pmemlab.guest.accelerator import choose_accelerator
from pmemlab.guest.initramfs import get_initramfs
from pmemlab.guest.kernel import get_kernel
from pmemlab.guest.link import Link
from pmemlab.guest.qemu import Qemu, command_line, find_qemu
from pmemlab.machines.protocol import Accelerator, Result
from pmemlab.proof import Proof, probe_command, prove
from pmemlab.topology import Topology

__all__ = ["GuestMachine", "open_guest_machine"]

# Generous: seven guests that start at once without KVM share the host's cores.
_BOOT_LIMIT_S = 180.0
_PROVISION_LIMIT_S = 180.0
_STATE_PREFIX = "pmemlab-"
_STALE_AFTER_S = 60.0
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
        self._owns_state = state is None
        self._state = (state or _temporary_state()).absolute()
        self._lock = _locked(self._state)
        self._qemu: Qemu | None = None
        self._link: Link | None = None
        self._proof: Proof | None = None
        self._end = "is stopped"  # what is said of it once it is down by our own hand
        self._down = False
        # What the guest may have cached, by modification time and size.
        self._host_files: dict[Path, tuple[int, int]] = {}
        self._fresh_at = 0.0  # epoch; the guest has cached nothing older

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
        initramfs = get_initramfs(kernel)
        on_step("choosing KVM or TCG")
        self.accelerator = choose_accelerator(kernel, qemu)

        started, self._fresh_at = time.monotonic(), time.time()
        on_step(f"booting on {self.accelerator.upper()}")
        for name, size in self.topology.backing_files.items():
            with (self._state / f"{name}.img").open("wb") as file:
                file.truncate(size)  # sparse: what the guest never writes takes no room
        ours, theirs = socket.socketpair()
        with ours:
            argv = command_line(
                self.topology,
                kernel,
                initramfs,
                self.accelerator,
                self._state,
                # -S -E: nothing of site-packages, nothing of the environment
                [self.python, "-S", "-E", str(_AGENT)],
                theirs.fileno(),
            )
            self._qemu = Qemu(self.topology.name, argv, self._state, theirs)
            self._link = Link(ours.dup(), self._died)
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
        self.refresh(argv)
        return self.link.run(argv, self.environment(env), timeout)

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of a command that is given `env`."""
        return {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(str(f.parent) for f in _package_folders())),
            **self.topology.environment,
            **(env or {}),
        }

    def refresh(self, argv: Sequence[str]) -> None:
        """Let the guest see what was edited here since its last command.

        It caches this computer's files for good, which is what makes it fast. So what a command
        can reasonably depend on is compared first: this project's code, and the files named in
        its arguments.
        """
        files = [file for folder in _package_folders() for file in folder.rglob("*.*")]
        files += [Path(argument) for argument in argv if argument.startswith("/")]
        changed = False
        for file in files:
            with suppress(OSError):
                status = file.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                known = self._host_files.get(file)
                # One that is new to us may have been missed by the guest, if it is new at all.
                is_newer = known is None and status.st_ctime > self._fresh_at
                changed |= file.suffix != ".pyc" and (is_newer or known not in (None, stamp))
                self._host_files[file] = stamp
        if changed:
            self.link.refresh()
            self._fresh_at = time.time()

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
        if self._owns_state:
            shutil.rmtree(self._state, ignore_errors=True)
        else:
            names = [f"{name}.img" for name in self.topology.backing_files]
            for name in [*names, "console.log", "qemu.log", "lock"]:
                (self._state / name).unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> GuestMachine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _died(self, how: str) -> LabError:
        if self._down:
            return MachineDiedError(f"guest {self.topology.name} {self._end}")
        assert self._qemu is not None
        return self._qemu.died(how)


def _package_folders() -> list[Path]:
    """The folders of the project's two packages, as this Python finds them."""
    specs = (importlib.util.find_spec(name) for name in ("pmemlab", "embstore"))
    # An editable install has two for embstore: its sources, and its compiled core.
    found = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return [Path(place) for place in found]


def _temporary_state() -> Path:
    """A new folder for a guest. Those that killed owners left behind are removed first."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_STATE_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
                with (folder / "lock").open("r") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_STATE_PREFIX))


def _locked(state: Path) -> int:
    """Take the folder for this process. The lock goes with the process, however that ends."""
    try:
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LabError(f"state folder {state}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise LabError(f"state folder {state}: another machine is using it") from None
    return lock
