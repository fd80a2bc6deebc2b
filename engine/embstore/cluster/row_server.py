"""Serves the rows of a shard over sockets, a thread a connection."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore._shard import LocalShard
from embstore.cluster import wire
from embstore.cluster.wire import Outcome, Request, RequestHead
from embstore.errors import InvalidArgumentError

__all__ = ["RowServer", "ServerAddress"]

_GREETING_S = 10.0  # that a peer may take to say the token


@dataclass(frozen=True)
class ServerAddress:
    host: str
    port: int
    token: bytes  # without which a connection is closed


class RowServer:
    """Listens on one address of this node for as long as the process lives, or until `close()`."""

    def __init__(self, shard: LocalShard, dim: int, host: str) -> None:
        self._shard = shard
        self._dim = dim
        self._listener = socket.create_server((host, 0))
        self.address = ServerAddress(
            host, self._listener.getsockname()[1], secrets.token_bytes(wire.TOKEN_BYTES)
        )
        threading.Thread(target=self._accept, name="embstore-accept", daemon=True).start()

    def close(self) -> None:
        """Of no more connections; those that are there end when their workers close them."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="embstore-rows", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        # A peer that vanishes is no error: what it had prepared is given up, and that is all.
        with connection, contextlib.suppress(OSError, EOFError):
            wire.prepare(connection)
            connection.settimeout(_GREETING_S)
            greeting = bytes(wire.receive(connection, len(wire.MAGIC) + wire.TOKEN_BYTES))
            if not hmac.compare_digest(greeting, wire.MAGIC + self.address.token):
                return
            connection.settimeout(None)
            wire.send(connection, wire.MAGIC)
            served = _Connection(connection, self._shard, self._dim)
            try:
                while True:
                    served.answer()
            finally:
                served.abort()


class _Connection:
    """What is prepared over a connection is committed over it, so by the same thread, and before
    anything else."""

    def __init__(self, connection: socket.socket, shard: LocalShard, dim: int) -> None:
        self._socket = connection
        self._shard = shard
        self._dim = dim
        self._prepared: int | None = None
        # Kept from request to request: new memory costs more than filling it.
        self._ids = np.empty(0, np.int64)
        self._occurrences = np.empty(0, np.uint32)
        self._rows = np.empty((0, dim), np.float32)

    def answer(self) -> None:
        """One request; raises OSError or EOFError where the peer is gone, and nothing else."""
        packed = wire.receive(self._socket, wire.REQUEST_HEAD.size)
        kind, counts, ids, global_step = wire.REQUEST_HEAD.unpack(packed)
        if kind not in iter(Request) or wire.batch_bytes(ids, self._dim) > wire.MOST_BYTES:
            raise EOFError("no worker of ours sends that")
        head = RequestHead(Request(kind), counts, ids, global_step)
        if self._prepared is not None and head.kind not in (Request.COMMIT, Request.ABORT):
            raise EOFError("what is prepared uses the buffers until it is committed")
        keys, occurrences, rows = self._receive_batch(head)
        try:
            body = self._do(head, keys, occurrences, rows)
        except Exception as error:
            self._send(Outcome.REFUSED, wire.pack_refusal(error))
        else:
            self._send(Outcome.DONE, body)

    def abort(self) -> None:
        """Gives up what is prepared."""
        number, self._prepared = self._prepared, None
        if number is not None:
            self._shard.abort_apply(number)

    def _receive_batch(
        self, head: RequestHead
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32] | None, NDArray[np.float32]]:
        if head.ids > self._ids.size:
            self._ids = np.empty(head.ids, np.int64)
            self._occurrences = np.empty(head.ids, np.uint32)
            self._rows = np.empty((head.ids, self._dim), np.float32)
        keys, rows = self._ids[: head.ids], self._rows[: head.ids]
        wire.receive_into(self._socket, keys)
        occurrences = self._occurrences[: head.ids] if head.counts else None
        if occurrences is not None:
            wire.receive_into(self._socket, occurrences)
        if head.kind in (Request.APPLY, Request.PREPARE):
            wire.receive_into(self._socket, rows)
        return keys, occurrences, rows

    def _do(
        self,
        head: RequestHead,
        keys: NDArray[np.int64],
        occurrences: NDArray[np.uint32] | None,
        rows: NDArray[np.float32],
    ) -> bytes | NDArray[np.float32]:
        step = None if head.global_step < 0 else head.global_step
        if head.kind is Request.ABORT:
            self.abort()
            return b""
        if head.kind is Request.COMMIT:
            number, self._prepared = self._prepared, None
            if number is None:
                raise InvalidArgumentError("a batch is committed that wasn't prepared")
            self._shard.commit_apply(number, step)
            _core.wait_as_owed()  # which a commit doesn't, since it may be one of several
            return b""
        if head.kind in (Request.SERVE, Request.LOOK_UP):
            return self._shard.lookup(keys, head.kind is Request.LOOK_UP, rows, occurrences)
        if head.kind is Request.APPLY:
            self._shard.apply_gradients(keys, rows, step, occurrences)
        else:
            self._prepared = self._shard.prepare_apply(keys, rows, occurrences)
        return b""

    def _send(self, outcome: Outcome, body: bytes | NDArray[np.float32]) -> None:
        count = body.nbytes if isinstance(body, np.ndarray) else len(body)
        wire.send(self._socket, wire.ANSWER_HEAD.pack(outcome, count), body)
