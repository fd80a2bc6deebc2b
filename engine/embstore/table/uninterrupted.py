"""Scopes that Ctrl-C doesn't leave half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["uninterrupted"]

_Handler = Callable[[int, "FrameType | None"], Any]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM are handled when it ends, if the program handles them at all."""
    if threading.current_thread() is not threading.main_thread():  # which handles all signals
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, _Handler] = {}
    try:
        with contextlib.ExitStack() as restored:  # one after the other, whatever comes meanwhile
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, lambda *signalled: came.append(signalled))
            yield
    finally:
        for told, frame in came:
            handlers[told](told, frame)
