"""The processes below this one, which it ends one by one: never by a name."""

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
    started_ticks: int  # since the computer started: another process of the number has another

    @property
    def is_there(self) -> bool:
        """A zombie isn't."""
        found = _read(self.number)
        return found is not None and found[0] == self and found[2] != "Z"


def adopt_orphans() -> None:
    """From here on a process below this one whose parent ends becomes its child, and can be found:
    else it would be init's.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise EmbStoreError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def descendants(number: int) -> set[Process]:
    """Of a process that lives: its children, theirs, and so on. One whose parent has ended is found
    where somebody above has adopted it."""
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
    """Asks them to end, then makes them, also those that are stopped. Returns what is there still
    after that, which the system can't end right now.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = {process for process in processes if process.is_there}
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.number, number)
        deadline = time.monotonic() + within_s
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = {process for process in left if process.is_there}
        if not left:
            return left
    return left


def _read(number: int) -> tuple[Process, int, str] | None:
    """With the number of its parent and its state; None where there is none."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may have anything in it
    return Process(number, int(fields[19])), int(fields[1]), fields[0]
