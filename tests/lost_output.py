"""Commands whose output gets lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

__all__ = ["ends_without_output"]


def ends_without_output(command: Sequence[str], unbuffered: str) -> list[tuple[int, str]]:
    """Returns the exit status and stderr of a command where stdout is a pipe that nobody reads, and
    where it is a full medium.

    unbuffered: PYTHONUNBUFFERED.
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
