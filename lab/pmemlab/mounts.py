"""The mount that a folder is on, from the kernel's list."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["MEMORY_FILE_SYSTEMS", "Mount", "mount_of"]

MEMORY_FILE_SYSTEMS: Final = ("tmpfs", "ramfs", "devtmpfs")
"""File systems whose files lie in this computer's memory and on no medium."""

_MOUNTS: Final = Path("/proc/self/mountinfo")


class Mount(NamedTuple):  # NamedTuple: importing dataclasses would cost a guest 0.5 s
    """A mount. options: those of the mount and of its file system, separated by commas."""

    device_number: str
    point: str
    options: str
    filesystem: str
    source: str

    @property
    def is_dax(self) -> bool:
        return not {"dax", "dax=always"}.isdisjoint(self.options.split(","))


def mount_of(path: Path) -> Mount:
    """Returns the innermost mount of an absolute path without links. Raises OSError."""
    found: Mount | None = None
    for line in _MOUNTS.read_text().splitlines():
        left, _, right = line.partition(" - ")
        _, _, number, _, point, options, *_ = left.split()
        filesystem, source, super_options = [*right.split(), ""][:3]
        mount = Mount(
            device_number=number,
            point=_unescaped(point),
            options=f"{options},{super_options}",
            filesystem=filesystem,
            source=_unescaped(source),
        )
        # The last of the longest mount points: later mounts hide earlier ones.
        longest = 0 if found is None else len(found.point)
        if path.is_relative_to(mount.point) and len(mount.point) >= longest:
            found = mount
    if found is None:
        raise OSError(errno.ENOENT, "no mount has it", str(path))
    return found


def _unescaped(text: str) -> str:
    """Returns a text of mountinfo with its octal escapes (spaces and the like) replaced."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
