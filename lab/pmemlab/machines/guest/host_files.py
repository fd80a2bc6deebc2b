"""Which of this computer's files a guest's commands depend on, and whether they were edited.

A guest caches the files it has read for good, which is what makes it fast. So before a command,
what it can reasonably depend on is compared: this project's code, and the files that its
arguments name.
"""

from __future__ import annotations

import compileall
import importlib.util
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["HostFiles", "compile_packages", "package_folders"]

_TICK_S = 0.1  # a file's times are the kernel's last tick, a little behind our clock


def package_folders() -> list[Path]:
    """The folders of the project's two packages, as this Python finds them."""
    specs = (importlib.util.find_spec(name) for name in ("pmemlab", "embstore"))
    # An editable install has two for embstore: its sources, and its compiled core.
    found = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return [Path(place) for place in found]


def compile_packages(folders: Sequence[Path]) -> None:
    """Have their bytecode beside the sources, where this user may write.

    A guest without it compiles them anew after every boot, for seconds.
    """
    for folder in folders:
        compileall.compile_dir(folder, quiet=2)


class HostFiles:
    """What a guest may have cached. Made before the guest boots."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._stamps: dict[Path, tuple[int, int]] = {}  # modification time in ns, size
        self._cached_since = time.time()

    def changed(self, argv: Sequence[str]) -> bool:
        """Whether a file was edited or made since it was looked at; then all is forgotten."""
        files = [file for folder in self._folders for file in folder.rglob("*.*")]
        files += [Path(argument) for argument in argv if argument.startswith("/")]
        changed = False
        for file in files:
            if file.suffix == ".pyc":  # checked against its source by whoever reads it
                continue
            with suppress(OSError):
                status = file.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                known = self._stamps.get(file)
                # The guest may have looked for one that is new, and remember that it wasn't there.
                is_new = known is None and status.st_ctime > self._cached_since - _TICK_S
                changed |= is_new or known not in (None, stamp)
                self._stamps[file] = stamp
        if changed:
            self._cached_since = time.time()
        return changed
