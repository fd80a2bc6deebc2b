"""A guest's QEMU as a script that a user can read, change and run by hand: `--dry-run`."""

from __future__ import annotations

import shlex
import sys

from pmemlab.machines.guest.accelerator import choose_accelerator
from pmemlab.machines.guest.cache import cache_folder
from pmemlab.machines.guest.initramfs import write_initramfs
from pmemlab.machines.guest.kernel import get_kernel
from pmemlab.machines.guest.machine import agent_command
from pmemlab.machines.guest.options import GuestOptions
from pmemlab.machines.guest.qemu import command_line, find_qemu
from pmemlab.machines.guest.sandbox import sandbox_arguments
from pmemlab.machines.guest.shares import guest_root, shared_folders
from pmemlab.topology import Topology

__all__ = ["script"]


def script(topology: Topology, options: GuestOptions) -> str:
    """Shell commands that start the guest that `pmemlab` would start, from the same kernel.

    Its folder is in the user's cache; the initramfs is made there now, and nothing is started. What
    the lab would then run in the guest is in comments.
    """
    topology = options.applied_to(topology)
    results = options.results_share()
    qemu = find_qemu()
    kernel = get_kernel()
    shares = shared_folders()
    state = cache_folder() / "by-hand" / topology.name
    state.mkdir(parents=True, exist_ok=True)
    initramfs = state / "initramfs"
    write_initramfs(initramfs, kernel, guest_root(shares))
    argv = command_line(
        topology,
        kernel,
        initramfs,
        choose_accelerator(kernel, qemu),
        state,
        agent_command(sys.executable),
        f"path={str(state / 'agent.sock').replace(',', ',,')},server=on,wait=off",
        shares=[*shares, *([results] if results else [])],
        further=[*sandbox_arguments(qemu), *options.qemu_arguments],
    )
    lines = [f"# {topology.name}: {topology.summary}", shlex.join(["mkdir", "-p", str(state)])]
    for name, size in topology.backing_files.items():
        lines.append(shlex.join(["truncate", "--size", str(size), str(state / f"{name}.img")]))
    lines.append(_folded(argv))
    for step in topology.provision:
        where = "in the guest, on new media" if step.formats else "in the guest"
        lines.append(f"# {where}: {step.command}")
    return "\n".join(lines) + "\n"


def _folded(argv: list[str]) -> str:
    """An option a line."""
    lines: list[list[str]] = [[]]
    for argument in argv:
        if argument.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(argument)
    return " \\\n  ".join(shlex.join(line) for line in lines)
