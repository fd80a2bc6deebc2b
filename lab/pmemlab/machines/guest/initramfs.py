"""The guests' initramfs: busybox, the kernel's modules and a script."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from pmemlab.errors import MissingRequirementError
from pmemlab.machines.guest.kernel import Kernel

__all__ = ["Entries", "find_busybox", "write_cpio", "write_initramfs"]

Entries = dict[str, tuple[int, bytes]]
"""Name -> (mode with file type, content), with folders before their contents."""

_SYSTEM_PATH = "/usr/bin:/bin"
_FOLDERS = ("bin", "dev", "proc", "sys", "lower", "overlay", "root")


def write_initramfs(
    path: Path, kernel: Kernel, added: Entries | None = None, init: bytes | None = None
) -> None:
    """Writes an initramfs for a kernel.

    added: further files.
    init: the first script to run. Default: the script that starts a guest's agent.
    Raises `MissingRequirementError` if there is no static busybox.
    """
    entries = dict.fromkeys(_FOLDERS, (stat.S_IFDIR | 0o755, b""))
    entries["bin/busybox"] = (stat.S_IFREG | 0o755, find_busybox().read_bytes())
    script = init or (Path(__file__).parent / "init").read_bytes()
    entries["init"] = (stat.S_IFREG | 0o755, script)
    tree = kernel.folder / "lib"
    for file in sorted([tree, *tree.rglob("*")]):
        name = file.relative_to(kernel.folder).as_posix()
        entries[name] = (
            (stat.S_IFDIR | 0o755, b"")
            if file.is_dir()
            else (stat.S_IFREG | 0o644, file.read_bytes())
        )
    order = "".join(f"/{module.relative_to(kernel.folder)}\n" for module in kernel.modules)
    entries["load-order"] = (stat.S_IFREG | 0o644, order.encode())
    write_cpio(path, entries | (added or {}))


def write_cpio(path: Path, entries: Mapping[str, tuple[int, bytes]]) -> None:
    """Writes a cpio archive in the "newc" format (linux: driver-api/early-userspace).

    entries: see `Entries`; the content of a symbolic link is its target.
    The archive is not compressed: unpacking takes a guest longer than reading.
    """
    with path.open("wb") as archive:
        for inode, (name, (mode, content)) in enumerate(
            [*entries.items(), ("TRAILER!!!", (0, b""))]
        ):
            encoded = name.encode() + b"\0"
            links = 2 if stat.S_ISDIR(mode) else 1
            fields = (inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
            archive.write(b"070701" + b"".join(b"%08X" % field for field in fields))
            for block, offset in ((encoded, 110), (content, 0)):
                archive.write(block)
                archive.write(b"\0" * (-(offset + len(block)) % 4))


def find_busybox() -> Path:
    """Returns the path of a static busybox. Raises `MissingRequirementError` if there is none."""
    remedy = "apt-get install busybox-static"
    found = shutil.which("busybox", path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")
    if found is None:
        raise MissingRequirementError("busybox, for the guests' initramfs", remedy)
    with Path(found).open("rb") as file:
        # A static ELF file has no interpreter (program header type PT_INTERP).
        header = file.read(4096)
    if b"/ld-" in header:
        raise MissingRequirementError(f"a static busybox; {found} is dynamic", remedy)
    return Path(found)
