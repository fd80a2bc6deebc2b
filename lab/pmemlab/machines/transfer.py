"""Folders carried from one machine to another, through commands alone.

Machines share no writable folder, and neither their kinds nor a network matter here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pmemlab.errors import LabError
from pmemlab.machines.protocol import Machine, Result

__all__ = ["fetch_folder", "put_folder", "temporary_folder"]

_CHUNK_BYTES = 72 << 10  # 96 KiB in base64; a single argument may have 128
_LIMIT_S = 120.0


@contextmanager
def temporary_folder(machine: Machine) -> Iterator[str]:
    """A folder in the machine, empty at first, that is removed in the end. Raises `LabError`."""
    path = _checked(machine, ["mktemp", "-d"]).stdout.strip()
    try:
        yield path
    finally:
        _checked(machine, ["rm", "-rf", path])


def fetch_folder(machine: Machine, path: str) -> bytes:
    """What a folder holds, for `put_folder`. Raises `LabError`."""
    done = _checked(machine, ["tar", "-C", path, "-czf", "-", "."])
    return done.stdout.encode(errors="surrogateescape")


def put_folder(machine: Machine, content: bytes, path: str) -> None:
    """Fill an existing folder with what `fetch_folder` gave. Raises `LabError`."""
    archive = f"{path.rstrip('/')}.tar.gz"
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = base64.b64encode(content[start : start + _CHUNK_BYTES]).decode()
        script = 'printf %s "$1" | base64 -d >> "$2"'
        _checked(machine, ["sh", "-ec", script, "sh", chunk, archive])
    _checked(machine, ["tar", "-C", path, "-xzf", archive])
    _checked(machine, ["rm", archive])


def _checked(machine: Machine, argv: Sequence[str]) -> Result:
    done = machine.run(argv, timeout=_LIMIT_S)
    if done.returncode:
        raise LabError(
            f"{machine.kind} {machine.topology.name}: {argv[0]} ended with status "
            f"{done.returncode}: {done.stderr.strip()}"
        )
    return done
