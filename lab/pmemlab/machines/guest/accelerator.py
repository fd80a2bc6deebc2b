"""KVM or TCG: KVM only where a guest was seen to boot on it.

/dev/kvm may be there and not work (nested virtualization that hangs), and nothing but a boot
tells. The answer is remembered until the host boots again, or its kernel or QEMU changes.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from pmemlab.machines.guest.cache import build_once, cache_folder
from pmemlab.machines.guest.initramfs import get_initramfs
from pmemlab.machines.guest.kernel import Kernel
from pmemlab.machines.protocol import Accelerator

__all__ = ["choose_accelerator"]

_SENTINEL = b"pmemlab: a guest has booted"
_BOOT_LIMIT_S = 15.0
_DEVICE = Path("/dev/kvm")
_INIT = b"#!/bin/busybox sh\nbusybox echo '%s'\nbusybox poweroff -f\n" % _SENTINEL


def choose_accelerator(kernel: Kernel, qemu: str) -> Accelerator:
    """What guests are run with on this computer. Takes 15 s at most, once a boot of the host."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "tcg"
    host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    version = f"{qemu} {Path(qemu).stat().st_mtime_ns}"
    key = " ".join([host, os.uname().release, kernel.release, version])
    memory = cache_folder() / "accelerator.json"
    remembered = _recall(memory, key)
    if remembered:
        return remembered
    initramfs = get_initramfs(kernel, init=_INIT, label="sentinel")
    with build_once() as scratch:
        remembered = _recall(memory, key)
        if remembered:
            return remembered
        answer: Accelerator = "kvm" if _boots(qemu, kernel, initramfs) else "tcg"
        (scratch / "answer").write_text(json.dumps({"key": key, "accelerator": answer}))
        (scratch / "answer").rename(memory)
    return answer


def _recall(memory: Path, key: str) -> Accelerator | None:
    try:
        document = json.loads(memory.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("key") != key:
        return None
    return "kvm" if document.get("accelerator") == "kvm" else "tcg"


def _boots(qemu: str, kernel: Kernel, initramfs: Path) -> bool:
    """Whether a guest on KVM gets as far as our first process."""
    argv = [
        *("setpriv", "--pdeathsig", "KILL", "--", qemu),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256M"),
        *("-kernel", str(kernel.image), "-initrd", str(initramfs), "-serial", "stdio"),
        *("-append", "console=ttyS0 quiet panic=-1 rdinit=/init"),
    ]
    try:
        console = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_BOOT_LIMIT_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        console = error.stdout or b""
    return _SENTINEL in console
