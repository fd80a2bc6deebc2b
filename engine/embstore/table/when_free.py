"""Waits for what a process that was killed still holds: its files are in use for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from embstore.errors import InUseError

__all__ = ["when_free"]

_T = TypeVar("_T")

_TRIED_AGAIN_S = 0.2


def when_free(call: Callable[[], _T], within_s: float) -> _T:
    """What `call` returns; after within_s its InUseError is raised."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except InUseError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_TRIED_AGAIN_S)
