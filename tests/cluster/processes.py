"""The processes that Ray starts, and whether they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

# When the server that these report to is gone before them, they try for a minute or two to tell it.
_LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def descendants(process: int) -> set[int]:
    """Of a process that lives: its children, theirs, and so on; not by what servers end them by."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _read(entry / "stat")):
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def assert_gone(processes: Iterable[int], *, at_once: bool = False) -> None:
    """Within 30 s, but for Ray's agents, which are ended; or at once, them too."""
    began = time.monotonic()
    while left := {process: name for process in processes if (name := command(process))}:
        took_s = time.monotonic() - began
        assert took_s < (1 if at_once else 30), f"still there: {left}"
        agents = [process for process, name in left.items() if name.startswith(_LINGERING)]
        if len(agents) == len(left) and took_s > 2:
            for process in agents:
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def command(process: int) -> str:
    """Its command line; "" where it has ended."""
    return _read(Path(f"/proc/{process}/cmdline")).replace("\0", " ").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
