"""Programs that save files, each run in its own process; some have mistakes on purpose."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Literal

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


def save_below_many_calls(medium: Path, calls: int = 30) -> None:
    if calls:
        save_below_many_calls(medium, calls - 1)
    else:
        save(medium)


def save_in_a_folder_for_its_group(medium: Path) -> None:
    medium.chmod(0o750)
    save(medium)


def save_by_mkstemp(medium: Path) -> None:
    """Makes new files as C programs do, under a unique name."""
    for number in range(1, SAVES + 1):
        new = ctypes.create_string_buffer(bytes(medium / "new-XXXXXX"))
        descriptor = ctypes.CDLL(None).mkstemp(new)
        os.write(descriptor, bytes([number]) * BYTES)
        os.fsync(descriptor)
        os.close(descriptor)
        Path(os.fsdecode(new.value)).replace(medium / "state")
        sync_folder(medium)
        print(number, flush=True)


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
    """Renames the older save before the newer one takes its name."""
    for number in range(1, SAVES + 1):
        state = medium / "state"
        write(medium / "new", number)
        if state.exists():
            state.replace(medium / "older")
        (medium / "new").replace(state)
        sync_folder(medium)
        print(number, flush=True)


def shorten(medium: Path) -> None:
    """Truncates a file that then grows again; after a cut it has the old or the new content, never
    both.
    """
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


def remove_existing(medium: Path) -> None:
    (medium / "state").unlink()
    (medium / "kept").rename(medium / "moved")


def make_two(medium: Path) -> None:
    write(medium / "state", 1)
    write(medium / "kept", 2)


def write_by_sendfile_and_mapping(medium: Path) -> None:
    """Writes by sendfile and through a mapping; these are no cut points, but are followed."""
    source, target = medium / "source", medium / "target"
    write(source, 1)
    with source.open("rb") as read, target.open("wb") as written:
        os.sendfile(written.fileno(), read.fileno(), 0, BYTES)
    with target.open("r+b") as file, mmap.mmap(file.fileno(), BYTES) as mapped:
        mapped[:100] = b"\x01" * 100


# --- Records: a header with their number, and data, synced in several ways.

RECORDS = 6
RECORD = 8192


def append_records(
    medium: Path, *, syncs_data: bool, sync_method: Literal["descriptor", "call"]
) -> None:
    """Writes data by one descriptor, and the header by another whose writes are synchronous."""
    header = os.open(medium / "header", os.O_RDWR | os.O_CREAT)
    flags = os.O_DSYNC if sync_method == "descriptor" else 0
    data = os.open(medium / "header", os.O_RDWR)
    synced = os.open(medium / "header", os.O_RDWR | flags)
    os.pwrite(header, bytes(RECORD), 0)
    os.fsync(header)
    sync_folder(medium)
    for number in range(1, RECORDS + 1):
        os.pwrite(data, bytes([number]) * RECORD, number * RECORD)
        if syncs_data:
            os.fdatasync(data)
        if sync_method == "descriptor":
            os.pwrite(synced, bytes([number]), 0)
        else:
            os.pwritev(synced, [bytes([number])], 0, os.RWF_DSYNC)
        print(number, flush=True)


def sync_header_only(medium: Path) -> None:
    append_records(medium, syncs_data=False, sync_method="descriptor")


def sync_header_only_by_the_call(medium: Path) -> None:
    append_records(medium, syncs_data=False, sync_method="call")


def sync_data_and_header(medium: Path) -> None:
    append_records(medium, syncs_data=True, sync_method="descriptor")


def sync_data_and_header_by_the_call(medium: Path) -> None:
    append_records(medium, syncs_data=True, sync_method="call")


def append_by_dsync(medium: Path) -> None:
    """Appends, also through Python's buffer, to a file that is synced at each write."""
    descriptor = os.open(medium / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC)
    sync_folder(medium)
    with os.fdopen(descriptor, "ab") as file:
        for number in range(1, 20):
            file.write(bytes([number]) * 1000)
            file.flush()
            print(number, flush=True)


def rewrite_by_dsync(medium: Path) -> None:
    """Replaces a longer content by a shorter one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DSYNC
    for number in range(1, SAVES + 1):
        descriptor = os.open(medium / "state", flags)
        sync_folder(medium)
        os.write(descriptor, bytes([number]) * (BYTES - number))
        os.close(descriptor)
        print(number, flush=True)


def grow_a_mapping(medium: Path) -> None:
    with (medium / "state").open("w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as mapped:
            mapped.resize(BYTES)
            mapped[:] = bytes([1]) * BYTES
            mapped.flush()
        os.fsync(file.fileno())
        mapped = mmap.mmap(file.fileno(), 4096)
        mapped.resize(BYTES)
        sync_folder(medium)
        print(1, flush=True)
        for number in range(2, 9):
            mapped[BYTES - 100 :] = bytes([number]) * 100
            mapped.flush(4096 * 4, BYTES - 4096 * 4)
            print(number, flush=True)


def make_a_mapping_writable(medium: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    (medium / "state").write_bytes(bytes([1]) * BYTES)
    with (medium / "state").open("r+b") as file:
        os.fsync(file.fileno())
        sync_folder(medium)
        read_only = libc.mmap(
            None, ctypes.c_size_t(BYTES), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0
        )
    address = ctypes.c_void_p(read_only)
    libc.mprotect(address, ctypes.c_size_t(BYTES), mmap.PROT_READ | mmap.PROT_WRITE)
    for number in range(1, 9):
        ctypes.memset(read_only + BYTES - 100, number, 100)
        libc.msync(address, ctypes.c_size_t(BYTES), 4)  # MS_SYNC
        print(number, flush=True)


def move_between_folders(medium: Path, *, both: bool = True) -> None:
    """Writes each file in one folder and moves it to another."""
    for name in ("from", "to"):
        (medium / name).mkdir()
    sync_folder(medium)
    for number in range(1, SAVES + 1):
        write(medium / "from" / "new", number)
        (medium / "from" / "new").rename(medium / "to" / f"save{number}")
        sync_folder(medium / "to")
        if both:
            sync_folder(medium / "from")
        print(number, flush=True)


def move_between_folders_and_sync_one(medium: Path) -> None:
    move_between_folders(medium, both=False)


def sync_in_a_forked_child(medium: Path) -> None:
    with (medium / "state").open("wb") as file:
        file.write(b"1")
        file.flush()
        child = os.fork()
        if child == 0:
            os.fsync(file.fileno())
            os._exit(0)
        os.waitpid(child, 0)


def rename_in_a_forked_child(medium: Path) -> None:
    write(medium / "state", 1)
    child = os.fork()
    if child == 0:
        (medium / "state").rename(medium / "renamed")
        os._exit(0)
    os.waitpid(child, 0)


def swap_a_link(medium: Path) -> None:
    """Saves to new files, with a link to the newest."""
    for number in range(1, SAVES + 1):
        write(medium / f"save{number}", number)
        sync_folder(medium)
        (medium / "new").symlink_to(f"save{number}")
        (medium / "new").replace(medium / "state")
        sync_folder(medium)
        print(number, flush=True)


def replace_links(medium: Path) -> None:
    """Makes each link after removing the previous one, so a file system may reuse its inode
    number.
    """
    for number in range(1, SAVES + 1):
        (medium / f"link{number}").symlink_to(f"./target{number}/")
        sync_folder(medium)
        print(number, flush=True)
        (medium / f"link{number}").unlink()
    for number in range(1, SAVES + 1):
        (medium / f"late{number}").symlink_to(f"./target{number}/")
    sync_folder(medium)


def make_a_link(medium: Path) -> None:
    (medium / "link0").symlink_to("./target0/")


def remove_a_link_and_replace_links(medium: Path) -> None:
    (medium / "link0").unlink()
    replace_links(medium)


def write_past_the_library(path: Path) -> None:
    """Writes by `dd`, without LD_PRELOAD."""
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1000", "count=1", "conv=notrunc"]
    subprocess.run(command, env={"PATH": os.environ["PATH"]}, stderr=subprocess.DEVNULL, check=True)


def save_and_write_a_new_file_past_the_library(medium: Path) -> None:
    save_correctly(medium)
    write_past_the_library(medium / "another")


def save_and_write_an_old_file_past_the_library(medium: Path) -> None:
    write(medium / "kept", 1)
    write_past_the_library(medium / "state")


def save_and_rename_past_the_library(medium: Path) -> None:
    save_correctly(medium)
    command = ["mv", str(medium / "state"), str(medium / "renamed")]
    subprocess.run(command, env={"PATH": os.environ["PATH"]}, check=True)


def save_beside_a_socket(medium: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(medium / "socket"))
        save_correctly(medium)
        (medium / "socket").rename(medium / "renamed")


def end_without_an_exit(medium: Path) -> None:
    write(medium / "state", 1)
    ctypes.CDLL(None).syscall(231, 0)  # exit_group


def leave_a_daemon(medium: Path) -> None:
    """Leaves a process in its own session that goes on writing after its parent's end."""
    file = os.open(medium / "state", os.O_CREAT | os.O_RDWR)
    sync_folder(medium)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            for number in itertools.count():
                os.pwrite(file, b"%d" % number, 0)
                time.sleep(0.001)
        os._exit(0)
    os.wait()
    for _ in range(SAVES):
        os.fsync(file)


def make_one_in_a_folder(medium: Path) -> None:
    (medium / "folder").mkdir()
    write(medium / "folder" / "state", 1)


def link_elsewhere_and_unlink(medium: Path) -> None:
    (medium / "linked").hardlink_to(medium / "folder" / "state")
    (medium / "folder" / "state").unlink()


def move_out_and_remove_the_folder(medium: Path) -> None:
    (medium / "folder" / "state").rename(medium / "moved")
    (medium / "folder").rmdir()


def save_in_a_child_alone(medium: Path) -> None:
    child = os.fork()
    if child == 0:
        save_correctly(medium)
        os._exit(0)
    os.waitpid(child, 0)


def save_in_a_child_first(medium: Path) -> None:
    save_in_a_child_alone(medium)
    write(medium / "another", 1)
