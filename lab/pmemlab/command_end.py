"""How a command ends that is interrupted, or whose output nobody reads."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

__all__ = ["exit_status_of"]


def exit_status_of(work: Callable[[], int]) -> int:
    """Does a command's work and returns its exit status, without a traceback where a user ended it:
    130 by Ctrl-C, and 1 by closing the pipe that stdout is. Other errors are the caller's.
    """
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads_stdout():
            raise
        return 1
    except KeyboardInterrupt:
        return 130


def _nobody_reads_stdout() -> bool:
    """Returns whether stdout is a closed pipe; if so, what is left in its buffer goes nowhere, so
    that the interpreter doesn't complain at its end.
    """
    stdout = sys.stdout.fileno()
    poll = select.poll()
    poll.register(stdout, 0)
    if not any(found & select.POLLERR for _, found in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout)
    os.close(nowhere)
    return True
