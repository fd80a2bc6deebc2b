"""Checks that the library saw each change in the folders: a change that it missed can't be lost."""

from __future__ import annotations

import filecmp
import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from powercut.aftermath import Folders, names_after
from powercut.errors import PowercutError

__all__ = ["check_changes_are_followed", "is_static"]

_PT_INTERP = 3


def check_changes_are_followed(
    before: Folders, unchanged: Sequence[Path] | None, record: Path, program: str
) -> None:
    """Raises `PowercutError`, which names the file, if a name or a file under `before`'s roots was
    changed without the library seeing it.

    unchanged: the folder that each root was a copy of; None if the roots were empty. record:
        written by the library; it need not exist.
    """
    document: dict[str, list[Any]] = {"names": [], "files": []}
    if record.exists():
        document = json.loads(record.read_bytes().decode(errors="surrogateescape"))
    after = Folders(before.roots)
    changed = _unknown_name(before, after, document["names"])
    if changed is None and unchanged is not None:
        changed = _unfollowed_file(before, after, unchanged, {*document["files"]})
    if changed is not None:
        raise PowercutError(
            f"{changed}: was changed in a way that can't be followed, as by a statically linked "
            "program, one that is started without LD_PRELOAD, or a system call past libc: let "
            f"{program} make this change itself, or make it in --prepare"
        )


def _unknown_name(
    before: Folders, after: Folders, calls: Sequence[Sequence[object]]
) -> Path | None:
    """Returns a path whose name, or the file with the name, isn't as these calls made it."""
    names = names_after(before, calls)
    for folder, entries in after.names.items():
        known = names.get(folder, {})
        for name in sorted(entries.keys() | known.keys()):
            node = entries.get(name)
            is_other = node is not None and node.type == "o"  # such as a socket from bind()
            if node != known.get(name) and not is_other:
                return after.folder_paths[folder] / name
    return None


def _unfollowed_file(
    before: Folders, after: Folders, unchanged: Sequence[Path], followed: set[int]
) -> Path | None:
    """Returns the path of a file that changed although it isn't followed."""
    for number, path in before.paths.items():
        now = after.paths.get(number)
        if number in followed or now is None or not now.is_file():
            continue
        index = next(i for i, root in enumerate(before.roots) if path.is_relative_to(root))
        if not filecmp.cmp(
            unchanged[index] / path.relative_to(before.roots[index]), now, shallow=False
        ):
            return now
    return None


def is_static(command: str, environment: Mapping[str, str]) -> bool:
    """Returns whether a program is an ELF file without a dynamic loader, which loads no library."""
    path = shutil.which(command, path=environment.get("PATH"))
    if path is None:
        return False
    try:
        with Path(path).open("rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF":
                return False
            order = "<" if head[5] == 1 else ">"
            if head[4] == 2:
                (start,) = struct.unpack_from(order + "Q", head, 32)
                size, count = struct.unpack_from(order + "HH", head, 54)
            else:
                (start,) = struct.unpack_from(order + "I", head, 28)
                size, count = struct.unpack_from(order + "HH", head, 42)
            file.seek(start)
            headers = file.read(size * count)
    except PermissionError:  # a file that can be run and not read
        return False
    types = [struct.unpack_from(order + "I", headers, at)[0] for at in range(0, size * count, size)]
    return _PT_INTERP not in types
