"""Commands whose output gets lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

__all__ = ["run_with_lost_output"]


def run_with_lost_output(command: Sequence[str], unbuffered: str) -> list[tuple[int, str]]:
    """Returns a command's exit status and stderr: first with stdout a pipe whose reading end is
    closed, then with stdout on a full medium.

    unbuffered: the value of PYTHONUNBUFFERED.
    """
    reader, closed = os.pipe()
    os.close(reader)
    ends = []
    for stdout in (closed, os.open("/dev/full", os.O_WRONLY)):
        with os.fdopen(stdout, "wb") as output:
            done = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )
        ends.append((done.returncode, done.stderr))
    return ends
