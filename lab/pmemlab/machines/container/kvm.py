"""Whether machines in containers are given /dev/kvm: only where a guest was seen to boot on it."""

from __future__ import annotations

import json
from pathlib import Path

import docker
from docker.errors import DockerException

from pmemlab.machines.guest.cache import build_once, cache_folder

__all__ = ["KVM_DEVICE", "kvm_works"]

KVM_DEVICE = "/dev/kvm"

_TRIAL = """
from pmemlab.machines.guest.accelerator import choose_accelerator
from pmemlab.machines.guest.kernel import get_kernel
from pmemlab.machines.guest.qemu import find_qemu
print(choose_accelerator(get_kernel(), find_qemu()))
"""


def kvm_works(client: docker.DockerClient, image: str) -> bool:
    """Boots a guest in a container, to see; 8 s at most. The answer holds until the host boots."""
    if not Path(KVM_DEVICE).is_char_device():
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    memory = cache_folder() / "containers-kvm.json"
    with build_once() as scratch:
        try:
            remembered = json.loads(memory.read_text())
        except (OSError, ValueError):
            remembered = {}
        if remembered.get("boot") == boot:
            return bool(remembered["works"])
        accelerator = _try(client, image)
        if accelerator is None:
            return False
        works = accelerator == "kvm"
        (scratch / "answer").write_text(json.dumps({"boot": boot, "works": works}))
        (scratch / "answer").rename(memory)
    return works


def _try(client: docker.DockerClient, image: str) -> str | None:
    """What guests in a container run on, given the device; None where the trial itself fails."""
    try:
        answer = client.containers.run(
            image,
            entrypoint=["tini", "--", "python", "-c", _TRIAL],
            cap_drop=["ALL"],
            devices=[KVM_DEVICE],
            network_mode="none",
            remove=True,
        )
    except DockerException:
        return None
    return str(answer.decode()).strip()
