"""The type of the file system that a folder is on."""

from __future__ import annotations

import tempfile
from pathlib import Path


def file_system_of(folder: Path | None) -> str:
    """Returns the type, such as ext4 or tmpfs. None: that of the system's temporary folder."""
    folder = (folder or Path(tempfile.gettempdir())).resolve()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    types = {Path(mount[1]): mount[2] for mount in mounts}
    return next(types[parent] for parent in (folder, *folder.parents) if parent in types)
