"""Ends a command properly if it is interrupted or can't write its output."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

__all__ = ["exit_status_of", "is_environment_error"]

_ENVIRONMENT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENAMETOOLONG)


def is_environment_error(error: OSError) -> bool:
    """Returns whether an error comes from the system or the user: no space, a failing disk, or a
    name that no file can have.
    """
    return error.errno in _ENVIRONMENT_ERRORS


def exit_status_of(work: Callable[[], int]) -> int:
    """Does a command's work and returns its exit status. If the user ended the command, there is no
    traceback: the status is 130 after Ctrl-C, and 1 if the reader closed the pipe that stdout is.
    Other errors propagate to the caller.
    """
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        nobody_reads = isinstance(error, BrokenPipeError) and _is_closed_pipe(sys.stdout.fileno())
        if nobody_reads or not _can_be_flushed(sys.stdout):
            # Redirects the rest of the buffer, or the interpreter complains when it exits.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        if nobody_reads:
            return 1
        raise


def _is_closed_pipe(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(found & select.POLLERR for _, found in poll.poll(0))


def _can_be_flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True
