"""Chooses KVM or TCG: KVM only if a guest has booted on it.

/dev/kvm may exist without working (nested virtualization that hangs), and only a boot can tell. The
answer is kept until the host reboots, for each guest kernel and QEMU.
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

__all__ = ["cached_answer", "choose_accelerator"]

_SENTINEL = b"pmemlab: a guest has booted"
# On KVM a guest boots in 2 s. If it takes longer than this, TCG, which takes 5 s, is as good.
_BOOT_LIMIT_S = 8.0
_DEVICE = Path("/dev/kvm")
_INIT = b"#!/bin/busybox sh\nbusybox echo '%s'\nbusybox poweroff -f\n" % _SENTINEL


def choose_accelerator(kernel: Kernel, qemu: str) -> Accelerator:
    """Returns the accelerator for guests on this computer. A trial takes 8 s at most, once per boot
    of the host for each kernel and QEMU."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "tcg"
    version = f"{qemu} {Path(qemu).stat().st_mtime_ns}"
    key = " ".join([os.uname().release, kernel.release, version])
    known = _recall().get(key)
    if known:
        return known
    return cached_answer(key, lambda: "kvm" if _boots(qemu, kernel) else "tcg")


def cached_answer(key: str, find: Callable[[], Accelerator]) -> Accelerator:
    """Returns the answer that `find` gave since the host booted, or calls it now, in one process at
    a time.

    An error of `find` is passed on, and nothing is remembered.
    """
    with build_once() as scratch:
        answers = _recall()
        if key not in answers:
            answers[key] = find()
            document = {"boot": _host_boot_id(), "answers": answers}
            (scratch / "answers").write_text(json.dumps(document))
            (scratch / "answers").rename(_memory())
        return answers[key]


def _memory() -> Path:
    return cache_folder() / "accelerator.json"


def _host_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _recall() -> dict[str, Accelerator]:
    """Returns key -> answer of the trials since the host booted."""
    try:
        document = json.loads(_memory().read_text())
        answers = document["answers"] if document["boot"] == _host_boot_id() else {}
        return {key: "kvm" if answer == "kvm" else "tcg" for key, answer in answers.items()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return {}


def _boots(qemu: str, kernel: Kernel) -> bool:
    """Returns whether a guest on KVM starts its first process."""
    with tempfile.NamedTemporaryFile(prefix="pmemlab-initramfs-") as initramfs:
        write_initramfs(Path(initramfs.name), kernel, init=_INIT)
        return _SENTINEL in _console(qemu, kernel, initramfs.name)


def _console(qemu: str, kernel: Kernel, initramfs: str) -> bytes:
    """Returns the console output of a guest on KVM until it ends or its time is up."""
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
