"""Detects edits to those of this computer's files that a guest's commands depend on.

A guest caches for good the files that it has read, which makes it fast. So before each command,
this project's code and the files that the command's arguments name are compared.
"""

from __future__ import annotations

import compileall
import importlib.util
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["HostFiles", "compile_packages", "package_folders"]

_TICK_S = 0.1  # file times are the kernel's last tick, a little behind the clock


def package_folders() -> list[Path]:
    """Returns the folders of the project's two packages, as this Python finds them."""
    specs = (importlib.util.find_spec(name) for name in ("pmemlab", "embstore"))
    # An editable install has two for embstore: its sources, and its compiled core.
    found = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return [Path(place) for place in found]


def compile_packages(folders: Sequence[Path]) -> None:
    """Writes bytecode beside the sources, if this user may.

    Otherwise a guest compiles the sources anew after every boot, for seconds.
    """
    for folder in folders:
        compileall.compile_dir(folder, quiet=2)


class HostFiles:
    """The files that a guest may have cached. REQUIRES: made before the guest boots."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._stamps: dict[Path, tuple[int, int]] = {}  # modification time in ns, size
        self._cached_since = time.time()

    def has_changed(self, argv: Sequence[str]) -> bool:
        """Returns whether a file was edited or made since the last look."""
        files = [file for folder in self._folders for file in folder.rglob("*.*")]
        files += [Path(argument) for argument in argv if argument.startswith("/")]
        has_changed = False
        for file in files:
            if file.suffix == ".pyc":  # the reader checks it against its source
                continue
            with suppress(OSError):
                status = file.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                known = self._stamps.get(file)
                # The guest may have looked for a new file before, and cached that it wasn't there.
                is_new = known is None and status.st_ctime > self._cached_since - _TICK_S
                has_changed |= is_new or known not in (None, stamp)
                self._stamps[file] = stamp
        if has_changed:
            self._cached_since = time.time()
        return has_changed
