"""Finds the processes that Ray starts, and checks that they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

# If the server that these report to ends first, they try for a minute or two to reach it.
_LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def descendants(process: int) -> set[int]:
    """Returns a living process's children, their children, and so on, without engine code."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _read(entry / "stat")):
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def assert_gone(processes: Iterable[int], *, at_once: bool = False) -> None:
    """Asserts that the processes end within 30 s; kills Ray's agents that are left. at_once:
    asserts that all processes, agents too, have ended.
    """
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
    """Returns the process's command line; "" if it has ended."""
    return _read(Path(f"/proc/{process}/cmdline")).replace("\0", " ").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
