"""Runs a command that takes long: reports each line of its output, and keeps the last ones."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pmemlab.errors import LabError

__all__ = ["Report", "run_long_command"]

Report = Callable[[str], None]
"""Takes a line of progress."""

_KEPT_LINES = 30


def run_long_command(
    command: Sequence[str],
    report: Report,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a command in `folder`, with `environment` added to this process's own.

    Raises `LabError` with the last lines of its output if the command fails.
    """
    last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                last_lines.append(line.rstrip())
                report(line.strip())
    if process.returncode:
        tail = "\n".join(last_lines)
        raise LabError(f"{command[0]} failed (exit status {process.returncode}):\n{tail}")
