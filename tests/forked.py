"""Work in a forked child of the test's process."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["forked"]


def forked(work: Callable[[], None]) -> int:
    """Runs `work` in a forked process. Returns its exit code: 0, or 1 if `work` raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
