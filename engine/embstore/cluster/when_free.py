"""Waits for what a process that was killed still holds: its files are in use for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from embstore.errors import StorageError

__all__ = ["when_free"]

_T = TypeVar("_T")

_TRIED_AGAIN_S = 0.2


def when_free(call: Callable[[], _T], in_use: str, within_s: float) -> _T:
    """What `call` returns. in_use: what a StorageError says where it is to be tried again."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except StorageError as error:
            if in_use not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(_TRIED_AGAIN_S)
