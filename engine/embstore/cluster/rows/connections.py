"""A worker's connections to the socket of one server."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.cluster.rows import wire
from embstore.cluster.rows.wire import Outcome
from embstore.errors import EmbStoreError, StorageError, UnsupportedError

__all__ = ["Connection", "Connections", "ServerAddress"]

_CONNECT_S = 20.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True)
class ServerAddress:
    host: str
    port: int
    token: bytes  # the server closes connections that don't send it


class Connection:
    """A connection that carries one request at a time. OSError and EOFError mean that the server is
    gone, or that it isn't known whether it did what was asked; an interrupted request too. The
    connection is then closed.

    silence_s: seconds without a sign of life after which TimeoutError is raised.

    Raises StorageError if this process can't open another socket, which says nothing about the
    server.
    """

    def __init__(self, address: ServerAddress, where: str, silence_s: float) -> None:
        self._where = where
        self._silence_s = silence_s
        try:
            self._socket = socket.create_connection(
                (address.host, address.port), min(_CONNECT_S, silence_s)
            )
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            raise StorageError(
                f"{where} can't be connected to: {error.strerror}; raise this process's limit of "
                "open files (ulimit -n), or have it use fewer threads, files or less memory"
            ) from error
        with self._close_on_error():
            wire.prepare(self._socket)
            self._socket.settimeout(silence_s)
            wire.send(self._socket, wire.MAGIC, address.token)
            greeting = bytes(wire.receive(self._socket, len(wire.MAGIC)))
            if greeting != wire.MAGIC:
                raise UnsupportedError(
                    f"{where} speaks another version of the protocol; install the same pmemlab on "
                    "every node"
                )

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def send(self, message: Sequence[bytes | NDArray[Any]]) -> None:
        with self._close_on_error():
            wire.send(self._socket, *message)

    def receive(
        self, outs: Sequence[NDArray[np.float32]], part_places: Sequence[str]
    ) -> list[EmbStoreError | None]:
        """Receives the answer. Returns for each part why it was refused, or None; then its rows are
        in its array of `outs`.

        outs: an array for each part; empty if the answer has no rows. part_places: as
        `wire.unpack_refusals` takes them.
        """
        with self._close_on_error():
            outcome, refusal_bytes, rows = Outcome.WAITING, 0, 0
            while outcome == Outcome.WAITING:
                packed = wire.receive(self._socket, wire.ANSWER_HEAD.size)
                outcome, refusal_bytes, rows = wire.ANSWER_HEAD.unpack(packed)
            refusals: list[EmbStoreError | None] = [None] * len(part_places)
            if outcome == Outcome.REFUSED:
                refusals = wire.unpack_refusals(
                    wire.receive(self._socket, refusal_bytes), part_places
                )
            filled = [out for out, refusal in zip(outs, refusals, strict=False) if refusal is None]
            if rows != sum(out.nbytes for out in filled):
                raise EOFError(f"it answered {rows} bytes of rows")
            wire.receive_into(self._socket, *filled)
            return refusals

    def close(self) -> None:
        self._socket.close()

    @contextlib.contextmanager
    def _close_on_error(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"it has given no sign of life for {self._silence_s:g} s") from error
        except BaseException:
            self.close()  # a part of a message may have been sent
            raise


class Connections:
    """The connections to a server that no thread is using, for the next thread that needs one."""

    def __init__(self, address: ServerAddress, where: str, silence_s: float) -> None:
        self._address = address
        self._where = where
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.connect()

    def connect(self) -> Connection:
        """Returns a new connection."""
        return Connection(self._address, self._where, self._silence_s)

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.is_open and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
