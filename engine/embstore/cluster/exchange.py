"""One request to a shard and its answer, whatever happens to the connection in between."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.cluster.connections import Connection, Connections
from embstore.cluster.wire import RequestHead
from embstore.errors import EmbStoreError

__all__ = ["Exchange"]

_ATTEMPTS = 4


class Exchange:
    """The request is under way once this is made. The parts must stay as they are until its end.

    Sent again where a connection broke: look-ups for training change nothing, and a push is known
    by its number. A shard that can't be connected to, or is silent, is gone.
    """

    def __init__(
        self,
        connections: Connections,
        head: RequestHead,
        *parts: NDArray[Any] | None,
        out: NDArray[np.float32] | None = None,
    ) -> None:
        self._connections = connections
        self._head = head
        self._parts = parts
        self._out = out
        self._connection: Connection | None = None
        with contextlib.suppress(OSError, EOFError):  # wait() tries again, and tells
            self._send(connections.take())

    def wait(self) -> None:
        """Until the answer is in `out`. Raises what the shard refused the request for, and OSError
        or EOFError where the shard is gone.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                connection = self._connection or self._send(self._connections.connect())
                self._connection = None
                connection.receive(self._out)
            except EmbStoreError:
                self._connections.give_back(connection)
                raise
            except (TimeoutError, ConnectionRefusedError):
                raise
            except (OSError, EOFError):
                if attempt == _ATTEMPTS:
                    raise
            else:
                self._connections.give_back(connection)
                return

    def give_up(self) -> None:
        """Nobody waits for the answer."""
        if self._connection is not None:
            self._connection.close()

    def _send(self, connection: Connection) -> Connection:
        connection.send(self._head, *self._parts)
        self._connection = connection
        return connection
