"""Times the phases of a save or a load separately."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

__all__ = ["Phase", "PhaseClock"]

Phase = Literal["serialise", "copy", "write", "sync", "read", "verify", "touch"]
"""serialise: tensors become bytes, with their checksums. copy: into mapped memory. write: write(2).
sync: until the data is on the medium. read: the file's content becomes tensors. verify: their
checksums are computed again. touch: every byte is read.
"""


class PhaseClock:
    """A clock of phases. A phase inside another phase interrupts it, so each second counts once."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}
        self._running: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        self._account()
        self._running.append(phase)
        try:
            yield
        finally:
            self._account()
            self._running.pop()

    def _account(self) -> None:
        now = time.perf_counter()
        if self._running:
            phase = self._running[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now
