"""KVM or TCG: KVM only where a guest was seen to boot on it.

/dev/kvm may be there and not work (nested virtualization that hangs), and nothing but a boot
tells. The answer is remembered until the host boots again, for each guest kernel and QEMU.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from pmemlab.machines.guest.cache import build_once, cache_folder
from pmemlab.machines.guest.initramfs import write_initramfs
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.guest.qemu import firmware_arguments
from pmemlab.machines.protocol import Accelerator

__all__ = ["choose_accelerator", "remembered"]

_SENTINEL = b"pmemlab: a guest has booted"
# On KVM a guest boots in 2 s; where it takes longer than this, TCG, which takes 5, is as good.
_BOOT_LIMIT_S = 8.0
_DEVICE = Path("/dev/kvm")
_INIT = b"#!/bin/busybox sh\nbusybox echo '%s'\nbusybox poweroff -f\n" % _SENTINEL


def choose_accelerator(kernel: Kernel, qemu: str) -> Accelerator:
    """What guests are run with on this computer. Takes 8 s at most, once a boot of the host for
    each kernel and QEMU."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "tcg"
    version = f"{qemu} {Path(qemu).stat().st_mtime_ns}"
    key = " ".join([os.uname().release, kernel.release, version])
    known = _recall().get(key)
    if known:
        return known
    return remembered(key, lambda: "kvm" if _boots(qemu, kernel) else "tcg")


def remembered(key: str, find: Callable[[], Accelerator]) -> Accelerator:
    """What `find` gave since the host booted, or gives now: one process at a time calls it.

    What it raises is passed on, and nothing is remembered.
    """
    with build_once() as scratch:
        answers = _recall()
        if key not in answers:
            answers[key] = find()
            document = {"boot": _boot_of_host(), "answers": answers}
            (scratch / "answers").write_text(json.dumps(document))
            (scratch / "answers").rename(_memory())
        return answers[key]


def _memory() -> Path:
    return cache_folder() / "accelerator.json"


def _boot_of_host() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _recall() -> dict[str, Accelerator]:
    """What was found since the host booted, by what it is for."""
    try:
        document = json.loads(_memory().read_text())
        answers = document["answers"] if document["boot"] == _boot_of_host() else {}
        return {key: "kvm" if answer == "kvm" else "tcg" for key, answer in answers.items()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return {}


def _boots(qemu: str, kernel: Kernel) -> bool:
    """Whether a guest on KVM gets as far as our first process."""
    with tempfile.NamedTemporaryFile(prefix="pmemlab-initramfs-") as initramfs:
        write_initramfs(Path(initramfs.name), kernel, init=_INIT)
        return _SENTINEL in _console(qemu, kernel, initramfs.name)


def _console(qemu: str, kernel: Kernel, initramfs: str) -> bytes:
    """Returns what a guest on KVM writes to its console until it ends, or its time is up."""
    argv = [
        *("setpriv", "--pdeathsig", "KILL", "--", qemu),
        *firmware_arguments(qemu),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256M"),
        *("-kernel", str(kernel.image), "-initrd", initramfs, "-serial", "stdio"),
        *("-append", "console=ttyS0 quiet panic=-1 rdinit=/init"),
    ]
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_BOOT_LIMIT_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        return error.stdout or b""
