"""Prints a guest's QEMU command as a script to read, change and run by hand (`--dry-run`)."""

from __future__ import annotations

import shlex

from pmemlab.machines.guest.accelerator import choose_accelerator
from pmemlab.machines.guest.cache import cache_folder
from pmemlab.machines.guest.kernel import get_kernel
from pmemlab.machines.guest.machine import qemu_command, write_guest_initramfs
from pmemlab.machines.guest.options import GuestOptions
from pmemlab.machines.guest.qemu import find_qemu
from pmemlab.topology import Topology

__all__ = ["qemu_script"]


def qemu_script(topology: Topology, options: GuestOptions) -> str:
    """Returns shell commands that start the guest that `pmemlab` would start, from the same kernel.

    The guest's folder is in the user's cache. Writes the initramfs there, and starts nothing.
    Commands that the lab would run in the guest are comments.
    """
    topology = options.applied_to(topology)
    kernel = get_kernel()
    state = cache_folder() / "by-hand" / topology.name
    state.mkdir(parents=True, exist_ok=True)
    initramfs = state / "initramfs"
    write_guest_initramfs(initramfs, kernel)
    accelerator = choose_accelerator(kernel, find_qemu())
    port = f"path={str(state / 'agent.sock').replace(',', ',,')},server=on,wait=off"
    argv = qemu_command(topology, options, kernel, accelerator, initramfs, state, port)
    lines = [f"# {topology.name}: {topology.summary}", shlex.join(["mkdir", "-p", str(state)])]
    for name, size in topology.backing_files.items():
        lines.append(shlex.join(["truncate", "--size", str(size), str(state / f"{name}.img")]))
    lines.append(_folded(argv))
    for step in topology.provision:
        place = "in the guest, on new media" if step.formats else "in the guest"
        lines.append(f"# {place}: {step.command}")
    return "\n".join(lines) + "\n"


def _folded(argv: list[str]) -> str:
    """Returns a command with one option a line."""
    lines: list[list[str]] = [[]]
    for argument in argv:
        if argument.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(argument)
    return " \\\n  ".join(shlex.join(line) for line in lines)
