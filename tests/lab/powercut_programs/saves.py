"""Programs that keep files, each run in a process of its own; some of them wrongly."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SAVES = 3
BYTES = 20000


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def write(path: Path, number: int, *, synced: bool = True) -> None:
    with path.open("wb") as file:
        file.write(bytes([number]) * BYTES)
        file.flush()
        if synced:
            os.fsync(file.fileno())


def save(
    folder: Path, *, content_first: bool = True, content: bool = True, name: bool = True
) -> None:
    for number in range(1, SAVES + 1):
        new = folder / "new"
        write(new, number, synced=content and content_first)
        new.replace(folder / "state")
        if content and not content_first:
            with (folder / "state").open("rb") as file:
                os.fsync(file.fileno())
        if name:
            sync_folder(folder)
        print(number, flush=True)


def save_correctly(medium: Path) -> None:
    save(medium)


def save_without_fsync(medium: Path) -> None:
    save(medium, content=False)


def save_and_rename_before_the_fsync(medium: Path) -> None:
    save(medium, content_first=False)


def save_without_fsync_of_the_folder(medium: Path) -> None:
    save(medium, name=False)


def save_in_place(medium: Path) -> None:
    for number in range(1, SAVES + 1):
        write(medium / "state", number)
        sync_folder(medium)
        print(number, flush=True)


def save_in_a_new_folder(medium: Path, *, parent_too: bool = True) -> None:
    for number in range(1, SAVES + 1):
        folder = medium / f"save{number}"
        folder.mkdir()
        write(folder / "part", number)
        sync_folder(folder)
        if parent_too:
            sync_folder(medium)
        print(number, flush=True)


def save_in_a_new_folder_that_is_lost(medium: Path) -> None:
    save_in_a_new_folder(medium, parent_too=False)


def append(medium: Path, *, synced: bool = True) -> None:
    with (medium / "log").open("ab", buffering=0) as file:
        sync_folder(medium)
        for number in range(1, 20):
            file.write(bytes([number]) * 1000)
            if synced:
                os.fdatasync(file.fileno())
            print(number, flush=True)


def append_without_sync(medium: Path) -> None:
    append(medium, synced=False)


def keep_two_saves(medium: Path) -> None:
    """The older one moves aside before the newer one takes its place."""
    for number in range(1, SAVES + 1):
        state = medium / "state"
        write(medium / "new", number)
        if state.exists():
            state.replace(medium / "older")
        (medium / "new").replace(state)
        sync_folder(medium)
        print(number, flush=True)


def shorten(medium: Path) -> None:
    """A file that is cut off and grows again has what it had, or what it has; never both."""
    descriptor = os.open(medium / "state", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"\x01" * BYTES, 0)
    os.fsync(descriptor)
    sync_folder(medium)
    print("whole", flush=True)
    os.ftruncate(descriptor, 100)
    os.pwrite(descriptor, b"\x02" * 50, BYTES - 50)


def sync_twice(medium: Path) -> None:
    write(medium / "state", 1)
    for _ in range(2):
        sync_folder(medium)
    with (medium / "state").open("rb") as file:
        os.fsync(file.fileno())


def remove_what_was_there(medium: Path) -> None:
    (medium / "state").unlink()
    (medium / "kept").rename(medium / "moved")


def make_two(medium: Path) -> None:
    write(medium / "state", 1)
    write(medium / "kept", 2)


def write_by_other_ways(medium: Path) -> None:
    """By sendfile and through a mapping, which aren't moments for a cut but are seen."""
    source, target = medium / "source", medium / "target"
    write(source, 1)
    with source.open("rb") as read, target.open("wb") as written:
        os.sendfile(written.fileno(), read.fileno(), 0, BYTES)
    with target.open("r+b") as file, mmap.mmap(file.fileno(), BYTES) as mapped:
        mapped[:100] = b"\x01" * 100


def make_one_in_a_folder(medium: Path) -> None:
    (medium / "folder").mkdir()
    write(medium / "folder" / "state", 1)


def link_elsewhere_and_unlink(medium: Path) -> None:
    (medium / "linked").hardlink_to(medium / "folder" / "state")
    (medium / "folder" / "state").unlink()


def move_out_and_remove_the_folder(medium: Path) -> None:
    (medium / "folder" / "state").rename(medium / "moved")
    (medium / "folder").rmdir()
