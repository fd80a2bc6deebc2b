"""Decides whether containers get /dev/kvm: only if a guest has booted on it."""

from __future__ import annotations

from pathlib import Path

import docker
from docker.errors import DockerException

from pmemlab.machines.guest.accelerator import cached_answer
from pmemlab.machines.protocol import Accelerator

__all__ = ["KVM_DEVICE", "kvm_works"]

KVM_DEVICE = "/dev/kvm"

_TRIAL = """
from pmemlab.machines.guest.accelerator import choose_accelerator
from pmemlab.machines.guest.kernel import get_kernel
from pmemlab.machines.guest.qemu import find_qemu
print(choose_accelerator(get_kernel(), find_qemu()))
"""


def kvm_works(client: docker.DockerClient, image: str) -> bool:
    """Returns whether a guest in a container boots on KVM. A trial takes up to 8 s; its result
    holds until the host reboots."""
    if not Path(KVM_DEVICE).is_char_device():
        return False
    try:
        return cached_answer("in containers", lambda: _trial_accelerator(client, image)) == "kvm"
    except DockerException:
        return False


def _trial_accelerator(client: docker.DockerClient, image: str) -> Accelerator:
    """Returns the accelerator that guests use in a container with the device."""
    answer = client.containers.run(
        image,
        entrypoint=["tini", "--", "python", "-c", _TRIAL],
        cap_drop=["ALL"],
        devices=[KVM_DEVICE],
        network_mode="none",
        remove=True,
    )
    return "kvm" if answer.decode().strip() == "kvm" else "tcg"
