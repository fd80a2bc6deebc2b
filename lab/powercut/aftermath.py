"""Turns a medium, as the program last saw it, into the state that the power cut left.

The library can't do this: while it lives, so do the program's threads.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powercut.errors import PowercutError
from powercut.frames import short_stack

__all__ = ["Cut", "Folders", "apply_cut", "kept_folder", "names_after"]

_PAGE_BYTES = 4096
_INODE_BITS = 56
_ADD, _REMOVE, _RENAME, _EXCHANGE = range(4)


@dataclass(frozen=True)
class Cut:
    """A power cut and the losses from it.

    frames: the call's stack, the innermost first.
    differing_units, lost_units, torn_units: units are lines of 64 bytes of mapped files and pages
    of 4096 of others. Differing: changed by the program and not made durable. Lost: differing units
    that didn't reach the medium. Torn: those that reached it in part.
    lost_names: changes of names that didn't reach the medium, as they were called.
    """

    point: int
    kind: str
    function: str
    frames: tuple[str, ...]
    differing_units: int
    lost_units: int
    torn_units: int
    lost_names: tuple[str, ...]

    def text(self, most_names: int = 3) -> str:
        """Returns the call and the losses on a line, and each lost name on another."""
        torn = f", {self.torn_units} torn" if self.torn_units else ""
        losses = f"{self.lost_units} of {self.differing_units} changed lines or pages lost{torn}"
        lines = [f"at point {self.point}, {self.function} in {short_stack(self.frames)}: {losses}"]
        lines += [f"  lost: {name}" for name in self.lost_names[:most_names]]
        if len(self.lost_names) > most_names:
            lines.append(f"  and {len(self.lost_names) - most_names} other changes of names")
        return "\n".join(lines)


def kept_folder(root: Path) -> Path:
    """Returns the folder where the library keeps followed files under `root`, by number."""
    return root.with_name(root.name + ".kept")


@dataclass(frozen=True)
class _Node:
    id: int  # the library's number
    type: str  # f, d, l, or o for other kinds such as sockets
    target: str = ""  # of a symbolic link


class Folders:
    """The names under some roots, as the medium has them before a program runs."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(roots)
        self.names: dict[int, dict[str, _Node]] = {}
        self.modes: dict[int, int] = {}
        self.paths: dict[int, Path] = {}
        self.folder_paths: dict[int, Path] = {}
        self._devices = list(dict.fromkeys(root.stat().st_dev for root in roots))
        self.root_ids = [self._scan(root) for root in roots]

    def _id(self, status: os.stat_result) -> int:
        """Returns the library's number of a file or folder."""
        return status.st_ino + (self._devices.index(status.st_dev) << _INODE_BITS)

    def _scan(self, folder: Path) -> int:
        status = folder.stat()
        number = self._id(status)
        names = self.names[number] = {}
        self.folder_paths[number] = folder
        self.modes[number] = stat.S_IMODE(status.st_mode)
        with os.scandir(folder) as entries:
            for entry in entries:
                own_id = self._id(entry.stat(follow_symlinks=False))
                path = Path(entry.path)
                if entry.is_symlink():
                    # Not Path.readlink(), which removes a leading "./" and a trailing "/".
                    target = os.readlink(entry.path)  # noqa: PTH115
                    names[entry.name] = _Node(own_id, "l", target)
                elif entry.is_dir():
                    names[entry.name] = _Node(own_id, "d")
                    self._scan(path)
                else:
                    names[entry.name] = _Node(own_id, "f" if entry.is_file() else "o")
                    self.paths[own_id] = path
        return number


def apply_cut(before: Folders, session: Path) -> Cut | None:
    """Changes the files under `before`'s roots to what the medium has after the cut.

    session: the folder where the library described the cut. Returns None and changes nothing if
        there is no description: then the program ended in another way.
    """
    try:
        document = json.loads((session / "cut.json").read_bytes().decode(errors="surrogateescape"))
    except FileNotFoundError:
        return None
    _change_files(before.roots, document["files"], session / "cut.pages")
    lost_names = tuple(str(call[-1]) for call in document["names"] if not call[0])
    if lost_names:
        _change_names(before, document["names"])
    return Cut(
        point=document["point"],
        kind=document["kind"],
        function=document["function"],
        frames=tuple(document["frames"]),
        differing_units=document["differing"],
        lost_units=document["lost"],
        torn_units=document["torn"],
        lost_names=lost_names,
    )


def _change_files(roots: Sequence[Path], files: Sequence[dict[str, object]], pages: Path) -> None:
    with pages.open("rb") as content:
        for file in files:
            root, number, size, numbers = (file[key] for key in ("root", "id", "size", "pages"))
            assert isinstance(root, int)
            assert isinstance(size, int)
            assert isinstance(numbers, list)
            path = kept_folder(roots[root]) / str(number)
            if not numbers and path.stat().st_size == size:
                continue
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
            descriptor = os.open(path, os.O_WRONLY)
            try:
                for page in numbers:
                    os.pwrite(descriptor, content.read(_PAGE_BYTES), page * _PAGE_BYTES)
                os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)


def _change_names(before: Folders, calls: Sequence[Sequence[object]]) -> None:
    after = Folders(before.roots)
    names = names_after(before, calls)
    modes = before.modes | after.modes
    paths = after.paths | _kept_paths(before.roots)

    def make(folder: Path, folder_id: int) -> None:
        folder.mkdir()
        for name, node in names.get(folder_id, {}).items():
            path = folder / name
            if node.type == "d":
                make(path, node.id)
            elif node.type == "l":
                path.symlink_to(node.target)
            elif node.id in paths:
                path.hardlink_to(paths[node.id])
            else:
                raise PowercutError(
                    f"{name}: was removed in a way that powercut doesn't see, so it can't come back"
                )
        folder.chmod(modes.get(folder_id, 0o755))

    for root, root_id in zip(before.roots, before.root_ids, strict=True):
        new, old = root.with_name(root.name + ".new"), root.with_name(root.name + ".old")
        make(new, root_id)
        root.rename(old)
        new.rename(root)
        shutil.rmtree(old)


def names_after(before: Folders, calls: Sequence[Sequence[object]]) -> dict[int, dict[str, _Node]]:
    """Returns the names that each folder has after those calls that reached the medium."""
    names = {folder: dict(entries) for folder, entries in before.names.items()}
    for call in calls:
        if call[0]:
            _apply_call(names, call)
    return names


def _apply_call(names: dict[int, dict[str, _Node]], call: Sequence[object]) -> None:
    """Repeats a call on names in memory."""
    _, kind, folder, name, to_folder, to_name, own_id, type_, target, _ = call
    assert isinstance(folder, int)
    assert isinstance(to_folder, int)
    assert isinstance(own_id, int)
    name, to_name = str(name), str(to_name)
    node = _Node(own_id, str(type_), str(target))
    entries = names.setdefault(folder, {})
    if kind == _ADD:
        entries[name] = node
        if node.type == "d":
            names[own_id] = {}
    elif kind == _REMOVE:
        entries.pop(name, None)
    elif kind == _RENAME:
        entries.pop(name, None)
        names.setdefault(to_folder, {})[to_name] = node
    elif kind == _EXCHANGE:
        others = names.setdefault(to_folder, {})
        if to_name not in others or name not in entries:
            raise PowercutError(
                f"{name if to_name in others else to_name}: came to be in a way that powercut "
                "doesn't see, so it can't be exchanged; let the program make it by libc's calls"
            )
        entries[name], others[to_name] = others[to_name], entries[name]


def _kept_paths(roots: Sequence[Path]) -> dict[int, Path]:
    return {int(path.name): path for root in roots for path in kept_folder(root).iterdir()}
