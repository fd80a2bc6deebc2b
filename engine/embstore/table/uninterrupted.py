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
def uninterrupted(stop: Callable[[], None] | None = None) -> Iterator[None]:
    """SIGINT and SIGTERM are handled when it ends, if the program handles them at all.

    stop: called at once where that will raise KeyboardInterrupt, so that it ends soon.
    """
    if threading.current_thread() is not threading.main_thread():  # which handles all signals
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, _Handler] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if stop is not None and handlers[number] is signal.default_int_handler:
            stop()

    try:
        with contextlib.ExitStack() as restored:  # one after the other, whatever comes meanwhile
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, note)
            yield
    finally:
        for told, frame in came:
            handlers[told](told, frame)
