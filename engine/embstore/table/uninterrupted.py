"""Defers Ctrl-C to the end of a scope, so that it leaves nothing half done."""

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
    """Defers the program's handlers of SIGINT and SIGTERM, if it has any, to the end of the scope.

    stop: called at once if the deferred handler will raise KeyboardInterrupt, so that the scope's
        work ends soon.
    """
    if threading.current_thread() is not threading.main_thread():  # which handles all signals
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, _Handler] = {}

    def note(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))
        if stop is not None and handlers[number] is signal.default_int_handler:
            stop()

    try:
        with contextlib.ExitStack() as restored:  # restores both handlers even if one raises
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, note)
            yield
    finally:
        for signal_number, frame in received:
            handlers[signal_number](signal_number, frame)
