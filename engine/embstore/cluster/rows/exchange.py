"""One request to a server and its answer, sent again if the connection breaks in between."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.cluster.rows.connections import Connection, Connections
from embstore.errors import EmbStoreError, StorageError

__all__ = ["Exchange"]

_ATTEMPTS = 4


class Exchange:
    """A request that is sent when this object is made. Its arrays must not change until it has
    ended.

    It is sent again if the connection breaks: look-ups for training change nothing, and a push is
    recognized by its number. A server that refuses connections, or is silent, is gone.
    """

    def __init__(
        self,
        connections: Connections,
        message: Sequence[bytes | NDArray[Any]],
        outs: Sequence[NDArray[np.float32]],
        part_places: Sequence[str],
    ) -> None:
        """outs, part_places: as `Connection.receive` takes them."""
        self._connections = connections
        self._message = message
        self._outs = outs
        self._part_places = part_places
        self._connection: Connection | None = None
        self._may_have_come = False
        with contextlib.suppress(OSError, EOFError):  # wait() tries again, and raises
            self._send(connections.take())

    def wait(self) -> list[EmbStoreError | None]:
        """Returns what `Connection.receive` does. Raises OSError or EOFError if the server is gone,
        or may have done something that can't be checked; StorageError if nothing was sent because
        this process can't open another socket.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                connection = self._connection or self._send(self._connections.connect())
                self._connection = None
                refusals = connection.receive(self._outs, self._part_places)
            except (TimeoutError, ConnectionRefusedError):
                raise
            except StorageError as error:
                if self._may_have_come:
                    raise OSError(str(error)) from error
                raise
            except (OSError, EOFError):
                if attempt == _ATTEMPTS:
                    raise
            else:
                self._connections.give_back(connection)
                return refusals
        raise AssertionError("the last attempt has returned or raised")

    def give_up(self) -> None:
        """Ends the request without its answer."""
        if self._connection is not None:
            self._connection.close()

    def _send(self, connection: Connection) -> Connection:
        self._may_have_come = True
        connection.send(self._message)
        self._connection = connection
        return connection
