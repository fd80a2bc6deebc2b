"""Ends all processes that a program leaves running, in whatever session, when it has ended."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

__all__ = ["adopt_orphans", "children", "end_descendants"]

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of each descendant whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def children() -> set[int]:
    """Returns the ids of this process's children, including ended ones not yet waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are none, which is usual
        return set()
    own = os.getpid()
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == own}


def end_descendants(spared: Set[int] = frozenset()) -> None:
    """Kills this process's children except the spared ones, and then the orphans that it adopts,
    until none is left. REQUIRES: `adopt_orphans` was called.
    """
    while ended := children() - spared:
        for child in ended:
            os.kill(child, signal.SIGKILL)
        for child in ended:
            os.waitpid(child, 0)


def _parent(process: Path) -> int | None:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        # The field before, the program's name, may contain any character.
        return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return None
