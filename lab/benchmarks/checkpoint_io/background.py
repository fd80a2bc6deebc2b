"""Saves in the background: training waits only for a copy of its state."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import Tensor

from benchmarks.checkpoint_io.checkpoint import Checkpoint

__all__ = ["BackgroundSaver"]


class BackgroundSaver:
    """Saves in a thread, one save at a time, from a copy whose memory the next save reuses."""

    def __init__(self, save: Callable[[Checkpoint], None]) -> None:
        self._save = save
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Starts a save; returns when the state may change. Waits for the previous save first, and
        raises that save's error.
        """
        self.wait()
        copies: dict[str, Tensor] = {}
        for name, tensor in checkpoint.tensors.items():
            old = self._copies.get(name)
            if old is not None and (old.dtype, old.shape) == (tensor.dtype, tensor.shape):
                copies[name] = old.copy_(tensor.detach())
            else:
                copies[name] = tensor.detach().clone()
        self._copies = copies
        self._thread = threading.Thread(
            target=self._run, args=(Checkpoint(copies, checkpoint.scalars),)
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last save is durable. Raises that save's error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, copied: Checkpoint) -> None:
        try:
            self._save(copied)
        except BaseException as error:
            self._error = error
