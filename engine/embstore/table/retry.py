"""Waits for files of a killed process, which the kernel releases only after some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from embstore.errors import InUseError

__all__ = ["retry_while_in_use"]

_T = TypeVar("_T")

_RETRY_INTERVAL_S = 0.2


def retry_while_in_use(call: Callable[[], _T], within_s: float) -> _T:
    """Returns the result of `call`, which is repeated while it raises InUseError. Raises that error
    once within_s seconds have passed.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except InUseError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_INTERVAL_S)
