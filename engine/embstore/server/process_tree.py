"""Ends the processes below this one, each by its id and never by a name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from embstore.errors import EmbStoreError

__all__ = ["Process", "adopt_orphans", "descendants", "end"]

_PR_SET_CHILD_SUBREAPER = 36  # of <sys/prctl.h>


@dataclass(frozen=True)
class Process:
    number: int
    started_ticks: int  # since boot; tells it from a later process with its id

    @property
    def is_there(self) -> bool:
        """True if the process still runs, which a zombie doesn't."""
        found = _read(self.number)
        return found is not None and found[0] == self and found[2] != "Z"


def adopt_orphans() -> None:
    """Has processes below this one become its children when their parent ends, so that it finds
    them. Otherwise they would become init's.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise EmbStoreError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def descendants(number: int) -> set[Process]:
    """Returns the children of a living process, their children, and so on. A process whose parent
    has ended is found only if a process in this tree adopts orphans."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _read(int(entry.name))) is not None:
            process, parent, _ = found
            children.setdefault(parent, []).append(process)
    below: set[Process] = set()
    waiting = [number]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            below.add(child)
            waiting.append(child.number)
    return below


def end(processes: Collection[Process], within_s: float) -> set[Process]:
    """Sends SIGTERM to the processes, and after within_s SIGKILL, which also ends stopped ones.
    Returns those that still exist after another within_s, which the kernel can't end now.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        living = {process for process in processes if process.is_there}
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.number, number)
        deadline = time.monotonic() + within_s
        while living and time.monotonic() < deadline:
            time.sleep(0.02)
            living = {process for process in living if process.is_there}
        if not living:
            return living
    return living


def _read(number: int) -> tuple[Process, int, str] | None:
    """Returns the process, its parent's id and its state; None if it doesn't exist."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before that may contain anything
    return Process(number, int(fields[19])), int(fields[1]), fields[0]
