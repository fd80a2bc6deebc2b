"""Signs of life: a peer that waits for a long answer hears that there will be one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from embstore.cluster.rows import wire
from embstore.cluster.rows.wire import Outcome

__all__ = ["Pulse"]

_HEAD = wire.ANSWER_HEAD.pack(Outcome.WAITING, 0, 0)


class Pulse:
    """A thread that has all connections beat on which something takes long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by it:
        self._since: dict[socket.socket, float] = {}
        self._is_closed = False
        threading.Thread(target=self._run, name="embstore-pulse", daemon=True).start()

    @contextlib.contextmanager
    def beats(self, connection: socket.socket) -> Iterator[None]:
        """Nothing else may be sent on it meanwhile."""
        with self._changed:
            self._since[connection] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[connection]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                self._changed.wait(wire.WAITING_EVERY_S)
                late = time.monotonic() - wire.WAITING_EVERY_S
                for connection, since in self._since.items():
                    if since <= late:
                        # Whoever doesn't read what it was sent has enough of it already; and one
                        # that is gone is noticed by whoever answers it.
                        with contextlib.suppress(OSError):
                            connection.send(_HEAD, socket.MSG_DONTWAIT)
