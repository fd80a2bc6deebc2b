"""Signs of life: tell a peer that waits for a long answer that the answer will come."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from embstore.cluster.rows import wire
from embstore.cluster.rows.wire import Outcome

__all__ = ["Heartbeat"]

_WAITING_HEAD = wire.ANSWER_HEAD.pack(Outcome.WAITING, 0, 0)


class Heartbeat:
    """A thread that sends signs of life on connections whose answers take long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by it:
        self._since: dict[socket.socket, float] = {}
        self._is_closed = False
        threading.Thread(target=self._run, name="embstore-heartbeat", daemon=True).start()

    @contextlib.contextmanager
    def sending_beside(self, connection: socket.socket) -> Iterator[None]:
        """Sends signs of life during the block. Nothing else may be sent on it meanwhile."""
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
                self._changed.wait(wire.WAITING_INTERVAL_S)
                late = time.monotonic() - wire.WAITING_INTERVAL_S
                for connection, since in self._since.items():
                    if since <= late:
                        # A peer that doesn't read has enough unread signs already. If the peer is
                        # gone, the thread that answers it notices.
                        with contextlib.suppress(OSError):
                            connection.send(_WAITING_HEAD, socket.MSG_DONTWAIT)
