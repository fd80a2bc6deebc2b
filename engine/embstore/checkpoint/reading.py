"""Reads the small files of checkpoints, which may be of anybody's making."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from embstore.errors import CheckpointError

__all__ = ["read_file"]


def read_file(path: Path) -> bytes:
    """Returns the bytes of a file. Raises CheckpointError where there is something else at `path`
    (a FIFO would have its reader wait for ever, and a device may have no end), and OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: is not a file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
