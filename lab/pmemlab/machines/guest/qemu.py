"""A QEMU process: its command line, its death, its console."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pmemlab.errors import LabError, MachineDiedError, MissingRequirementError
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.guest.shares import Share
from pmemlab.machines.protocol import Accelerator
from pmemlab.topology import Topology

__all__ = ["Qemu", "command_line", "find_qemu", "find_setpriv", "firmware_arguments"]

_CONSOLE_TAIL_BYTES = 2_000
_STOP_S = 10.0
_FULL_BELOW_BYTES = 1 << 20
# TCG's cache of translated code: large enough for PyTorch, small enough for seven guests.
_TCG_CACHE_MB = 256
# TCG of QEMU 7.2 loses AVX registers when the guest's kernel switches threads: numpy's argsort in
# two threads of a process crashes. Without AVX, programs use their SSE code.
# TCG runs "rep movsb" and "rep stosb" a byte at a time. Without erms and fsrm the kernel and glibc
# copy and clear by other instructions: a run takes three quarters of the time.
_TCG_CPU = "max,-erms,-fsrm,-avx,-avx2,-f16c,-fma,-vaes,-vpclmulqdq"

# The kernel kills a child when the *thread* that started it ends, so one thread that lives as long
# as this process starts all children.
_starter = ThreadPoolExecutor(1, thread_name_prefix="qemu starter")


def find_qemu() -> str:
    """Returns QEMU's path: $PMEMLAB_QEMU, or from PATH. Raises `MissingRequirementError`."""
    chosen = os.environ.get("PMEMLAB_QEMU")
    found = shutil.which(chosen or "qemu-system-x86_64")
    if found is None and chosen:
        raise MissingRequirementError(
            f"PMEMLAB_QEMU={chosen} is no program that can be run",
            "unset PMEMLAB_QEMU, or correct it",
        )
    if found is None:
        raise MissingRequirementError(
            "QEMU (qemu-system-x86_64)", "apt-get install qemu-system-x86"
        )
    return found


def firmware_arguments(qemu: str) -> list[str]:
    """Returns arguments that make QEMU use the firmware that it came with.

    A QEMU of a Debian package looks in /usr/share wherever it was unpacked, and firmware older than
    its own there may wait half a minute for a disk.
    """
    share = Path(qemu).resolve().parent.parent / "share"
    folders = [share / name for name in ("qemu", "seabios")]
    return [word for folder in folders if folder.is_dir() for word in ("-L", str(folder))]


def find_setpriv() -> str:
    """Returns the path of util-linux's setpriv, which ends a child together with its parent."""
    found = shutil.which("setpriv")
    if found is None:
        raise MissingRequirementError("setpriv", "apt-get install util-linux")
    return found


def command_line(
    topology: Topology,
    kernel: Kernel,
    initramfs: Path,
    accelerator: Accelerator,
    state: Path,
    agent_command: Sequence[str],
    port: str,
    *,
    shares: Sequence[Share] = (),
    extra_arguments: Sequence[str] = (),
) -> list[str]:
    """Returns QEMU's arguments for a topology. Backing files and the console lie in `state`.

    port: options of the socket to the agent.
    shares: the folders of this computer that the guest can read or write.
    extra_arguments: last arguments.
    """
    machine = ",".join(filter(None, ["q35", topology.machine_options]))
    cpu = "host" if accelerator == "kvm" else _TCG_CPU
    # Guests are throwaway and run our own code: mitigations would cost time and protect no one.
    # NUMA balancing would move pages away from the nodes where a scenario expects them.
    kernel_command_line = [
        f"console=ttyS0 quiet hostname={_host_name(topology)} rdinit=/init panic=-1 oops=panic",
        "mitigations=off nowatchdog tsc=reliable numa_balancing=disable",
        # Newer kernels may be built to put memory online by themselves, and daxctl then refuses.
        "memhp_default_state=offline",
        # On a busy host the emulated kernel may misjudge the TSC's frequency by a large factor, and
        # every rate with it, so it uses the HPET, whose frequency is given. Too few ticks at its
        # start must not end it ("IO-APIC + timer doesn't work!"). KVM has a clock of its own.
        "clocksource=hpet no_timer_check" if accelerator == "tcg" else "",
        topology.kernel_command_line,
        "--",
        *(_kernel_quoted(argument) for argument in agent_command),
    ]
    qemu = find_qemu()
    arguments = [
        qemu,
        *firmware_arguments(qemu),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-name", f"pmemlab-{_host_name(topology)}"),
        *("-machine", machine),
        *("-accel", "kvm" if accelerator == "kvm" else f"tcg,tb-size={_TCG_CACHE_MB}"),
        *("-cpu", ",".join(filter(None, [cpu, topology.cpu_options]))),
        *("-smp", str(topology.cpus)),
        *("-m", f"{topology.memory_bytes >> 20}M"),
        *("-kernel", str(kernel.image), "-initrd", str(initramfs)),
        *("-append", " ".join(filter(None, kernel_command_line))),
        *("-chardev", f"file,id=console,path={_qemu_quoted(state / 'console.log')}"),
        *("-serial", "chardev:console"),
        *("-chardev", f"socket,id=agent,{port}"),
        *("-device", "virtio-serial-pci"),
        *("-device", f"virtserialport,chardev=agent,name={agent.PORT_NAME}"),
    ]
    for share in shares:
        options = f"id={share.tag},path={_qemu_quoted(share.path)}"
        arguments += ["-fsdev", f"local,{options},{share.qemu_options()},multidevs=remap"]
        arguments += ["-device", f"virtio-9p-pci,fsdev={share.tag},mount_tag={share.tag}"]
    files = {name: _qemu_quoted(state / f"{name}.img") for name in topology.backing_files}
    for argument in topology.qemu:
        # Splits first, since paths may contain spaces.
        arguments += [word.format(**files) for word in shlex.split(argument)]
    return [*arguments, *extra_arguments]


def _host_name(topology: Topology) -> str:
    """Returns the topology's name without characters that are special to QEMU or the kernel."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", topology.name)


def _kernel_quoted(argument: str) -> str:
    """Returns an argument of the first process, quoted for the kernel's command line."""
    if '"' in argument or "\n" in argument:
        raise LabError(f"{argument!r}: a quote in this path can't be passed to a guest")
    return f'"{argument}"' if " " in argument else argument


def _qemu_quoted(path: Path) -> str:
    """Returns a path, quoted as a value in QEMU's key=value lists."""
    return str(path).replace(",", ",,")


class Qemu:
    """A started QEMU. It dies when this process does, however this process ends."""

    def __init__(self, name: str, argv: Sequence[str], state: Path, port: socket.socket) -> None:
        """Starts QEMU, which inherits `port`."""
        setpriv = find_setpriv()
        self._name = name
        self._console = state / "console.log"
        self._log = state / "qemu.log"

        def start() -> subprocess.Popen[bytes]:
            with self._log.open("wb") as log:
                return subprocess.Popen(
                    [setpriv, "--pdeathsig", "KILL", "--", *argv],
                    pass_fds=[port.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is ours to handle
                )

        self._process = _starter.submit(start).result()

    @property
    def pid(self) -> int:
        return self._process.pid

    def death_error(self, observation: str) -> MachineDiedError:
        """Returns the error for a dead guest, with its logs' ends. observation: what was seen."""
        try:
            status = self._process.wait(timeout=1.0)
            observation += f" (QEMU ended with status {status})"
            if status == -signal.SIGBUS and _is_full(self._console.parent):
                observation += (
                    f": the file system of {self._console.parent}, where its media lie, is full; "
                    "make room, or set TMPDIR or give --state-dir elsewhere"
                )
        except subprocess.TimeoutExpired:
            pass
        parts = [_tail(path) for path in (self._console, self._log)]
        return MachineDiedError(f"guest {self._name} {observation}", "\n".join(filter(None, parts)))

    def kill(self) -> None:
        """Ends QEMU at once, as a power cut would."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=_STOP_S)


def _is_full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _CONSOLE_TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
