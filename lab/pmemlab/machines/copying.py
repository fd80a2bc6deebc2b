"""Copies files and folders into a machine and out of it, as tar streams through its commands."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, cast

from pmemlab.errors import LabError
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.link import Command
from pmemlab.machines.protocol import Machine, Spawner

__all__ = ["copy_in", "copy_out", "owned_by_root", "remove_folder", "temporary_folder", "unpack"]

_LIMIT_S = 120.0


@contextmanager
def temporary_folder(machine: Machine) -> Iterator[str]:
    """Yields a new, empty folder in the machine, and removes it at the end. Raises `LabError`."""
    path = _output_of(machine, ["mktemp", "-d"]).strip()
    try:
        yield path
    finally:
        remove_folder(machine, path)


def remove_folder(machine: Machine, path: str) -> None:
    """Removes a folder in the machine, if it is there. Raises `LabError`."""
    _output_of(machine, ["rm", "-rf", path])


def copy_in(machine: Spawner, source: Path, target: str) -> None:
    """Copies a file or folder of this computer to a path in the machine.

    If `target` is a folder, the copy lies in it under the source's name; else `target` is the name
    of the copy, and its folder must exist. The copy belongs to root. Raises `LabError`.
    """
    name = source.absolute().name or source.resolve().name
    if not source.exists():
        raise LabError(f"{source}: there is no such file or folder to copy")
    folder = target
    if _status(machine, ["test", "-d", target]):
        if target.endswith("/"):
            raise LabError(f"{target}: there is no such folder in the machine; make it first")
        folder, name = posixpath.split(target)
    complaint = f"{source} can't be copied to {target}"
    unpack(machine, folder or "/", partial(_pack, source, name), complaint)


def unpack(
    machine: Spawner, folder: str, pack: Callable[[tarfile.TarFile], None], complaint: str
) -> None:
    """Runs tar in the machine, to unpack in `folder` an archive that `pack` writes.

    Raises `LabError` with the complaint and the file that can't be read here, or tar's own message.
    """
    command = machine.spawn(["tar", "-C", folder, "-xf", "-"], {}, takes_input=True)
    unread: list[OSError] = []

    def send() -> None:
        with suppress(LabError):  # the reader of the output gets the error of a dead guest
            try:
                with tarfile.open(mode="w|", fileobj=cast(IO[bytes], _Sink(command))) as archive:
                    pack(archive)
            except OSError as error:
                unread.append(error)
            command.end_input()

    thread = threading.Thread(target=send, name="copy", daemon=True)
    thread.start()
    complaints = bytearray()
    for _ in _stdout(command, complaints):
        pass
    thread.join()
    if unread or command.returncode:
        raise LabError(f"{complaint}: {_cause(complaints, *unread)}")


def copy_out(machine: Spawner, source: str, target: Path) -> None:
    """Copies a file or folder of the machine to a path on this computer.

    If `target` is a folder, the copy lies in it under the source's name; else `target` is the name
    of the copy, and its folder must exist. Devices and links that lead out of the copy are refused,
    and setuid and setgid bits are dropped. Raises `LabError`.
    """
    parent, name = posixpath.split(source.rstrip("/"))
    folder, new_name = (
        (target, name) if target.is_dir() else (target.absolute().parent, target.name)
    )
    if not folder.is_dir():
        raise LabError(f"{target}: there is no folder {folder}; make it first")
    # Copies a hard link as a file of its own, because members are renamed below.
    tar = ["tar", "-C", parent or "/", "--hard-dereference", "-cf", "-", "--", name]
    command = machine.spawn(tar, {})
    complaints = bytearray()
    unwritten: list[Exception] = []
    with closing(_stdout(command, complaints)) as pieces:
        try:
            with tarfile.open(mode="r|", fileobj=io.BufferedReader(_Source(pieces))) as archive:
                archive.extraction_filter = _unfiltered
                for member in archive:
                    member.name = new_name + member.name[len(name) :]
                    _sanitize(member, folder)
                    archive.extract(member, folder)
        except (OSError, tarfile.TarError) as error:
            unwritten.append(error)
        for _ in pieces:  # tar ends its stream with more zeros, or with complaints
            pass
    if unwritten or command.returncode:
        raise LabError(f"{source} can't be copied to {target}: {_cause(complaints, *unwritten)}")


def _sanitize(member: tarfile.TarInfo, folder: Path) -> None:
    """Does the work of tarfile's filter "data", which Debian 12's Python lacks: the machine may
    have written any stream. Raises `tarfile.TarError` for a member that must not come out of it.
    """
    inside = folder.resolve()

    def is_outside(path: Path) -> bool:
        return not path.resolve().is_relative_to(inside)

    place = inside / member.name
    if is_outside(place):
        raise tarfile.TarError(f"{member.name} would lie outside of the copy")
    if member.islnk() or not (member.isreg() or member.isdir() or member.issym()):
        raise tarfile.TarError(f"{member.name} is no file, folder or symbolic link")
    if member.issym():
        if Path(member.linkname).is_absolute():
            raise tarfile.TarError(f"{member.name} is a link to an absolute path")
        if is_outside(place.parent / member.linkname):
            raise tarfile.TarError(f"{member.name} is a link out of the copy")
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
    member.uid, member.gid = os.getuid(), os.getgid()
    member.uname = member.gname = ""


def _unfiltered(member: tarfile.TarInfo, _folder: str) -> tarfile.TarInfo:
    """Returns `member` as it is: a filter for versions of tarfile that warn if they get none."""
    return member


def _pack(source: Path, name: str, archive: tarfile.TarFile) -> None:
    archive.add(source, name, filter=owned_by_root)


def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _status(machine: Spawner, argv: Sequence[str]) -> int:
    command = machine.spawn(argv, {})
    for _ in command.output():
        pass
    return command.returncode


def _output_of(machine: Machine, argv: Sequence[str]) -> str:
    done = machine.run(argv, timeout=_LIMIT_S)
    if done.returncode:
        raise LabError(
            f"{machine.kind} {machine.topology.name}: {argv[0]} ended with status "
            f"{done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


def _cause(complaints: bytes | bytearray, *errors: Exception) -> str:
    """Returns the complaints of tar in the machine, or the errors here if tar has none."""
    return complaints.decode(errors="replace").strip() or "; ".join(map(str, errors))


def _stdout(command: Command, complaints: bytearray) -> Generator[bytes, None, None]:
    """Yields a command's standard output, and collects its standard error in `complaints`."""
    with closing(command.output()) as output:
        for stream, data in output:
            if stream == agent.STDOUT:
                yield data
            else:
                complaints += data


class _Sink:
    """A command's standard input as a writable file."""

    def __init__(self, command: Command) -> None:
        self._command = command

    def write(self, data: bytes) -> int:
        self._command.send_input(data)  # if the command has ended, its output says why
        return len(data)


class _Source(io.RawIOBase):
    """Pieces of bytes as a readable file."""

    def __init__(self, pieces: Generator[bytes, None, None]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            try:
                self._rest = next(self._pieces)
            except StopIteration:
                return 0
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
