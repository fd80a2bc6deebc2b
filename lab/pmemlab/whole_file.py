"""Whole files: reading one, writing one whole or not at all, and checks before that."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from pmemlab.errors import LabError

__all__ = ["check_output", "read_whole", "sync_folder", "write_output", "write_whole"]


def read_whole(path: Path) -> bytes:
    """Reads as `Path.read_bytes` does. Raises OSError for a FIFO, whose open waits for a writer."""
    if path.is_fifo():
        raise OSError(errno.ESPIPE, "Is a FIFO, not a file", str(path))
    return path.read_bytes()


def check_output(option: str, path: Path | None) -> None:
    """Checks that a file can be written at a path, before minutes of work on its content.

    option: the option that gave the path. path: None if the option was not given. Raises LabError.
    """
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise LabError(f"{option} {path}: there is no folder {folder}")
    if path.is_dir():
        raise LabError(f"{option} {path}: is a folder; give a file")


def write_output(option: str, path: Path, text: str) -> None:
    """Writes the whole file. Raises LabError, which names the option."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise LabError(f"{option} {path}: can't be written: {error.strerror}") from error


def write_whole(path: Path, text: str) -> None:
    """Writes as `Path.write_text` does, but a reader finds the whole text or the previous content.

    A link stays a link. A device, a pipe, and a file that stdout or stderr leads to aren't
    replaced: the text is written to them.
    """
    stream = _standard_stream_at(path)
    if stream is not None:
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                file.flush()  # keeps the order of the output
        with open(stream, "w", encoding="utf-8", closefd=False) as output:
            output.write(text)
        return
    target = path.resolve()
    # A pipe behind /dev/fd resolves to "pipe:[…]", which is no path.
    if path.exists() and not target.is_file():
        path.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _standard_stream_at(path: Path) -> int | None:
    """Returns the descriptor of stdout or stderr if it leads to the file at the path, else None."""
    for descriptor in (1, 2):
        try:
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except OSError:  # no file there yet, or the stream is closed
            continue
    return None


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed and removed in the folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
