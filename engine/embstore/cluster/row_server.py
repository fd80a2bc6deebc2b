"""Serves the rows of a shard over sockets, a thread a connection."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading

import numpy as np
from numpy.typing import NDArray

from embstore._shard import LocalShard
from embstore.cluster import wire
from embstore.cluster.connections import ServerAddress
from embstore.cluster.pulse import Pulse
from embstore.cluster.pushes import Pushes, PushPart, PushRules
from embstore.cluster.wire import Outcome, Request, RequestHead

__all__ = ["RowServer"]

_GREETING_S = 10.0  # that a peer may take to say the token


class RowServer:
    """Listens on one address of this node for as long as the process lives, or until `close()`."""

    def __init__(self, shard: LocalShard, dim: int, host: str, rules: PushRules) -> None:
        self._shard = shard
        self._dim = dim
        self._pushes = Pushes(shard, rules)
        self._pulse = Pulse()
        self._listener = socket.create_server((host, 0))
        self.address = ServerAddress(
            host, self._listener.getsockname()[1], secrets.token_bytes(wire.TOKEN_BYTES)
        )
        threading.Thread(target=self._accept, name="embstore-accept", daemon=True).start()

    def give_up_pushes(self) -> None:
        """Those that aren't applied yet won't be."""
        self._pushes.give_up()

    def close(self) -> None:
        """Of no more connections; those that are there end when their workers close them."""
        self._pushes.close()
        self._pulse.close()
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
        # A peer that vanishes is no error: it may connect again, and ask for the same.
        with connection, contextlib.suppress(OSError, EOFError):
            wire.prepare(connection)
            connection.settimeout(_GREETING_S)
            greeting = bytes(wire.receive(connection, len(wire.MAGIC) + wire.TOKEN_BYTES))
            if not hmac.compare_digest(greeting, wire.MAGIC + self.address.token):
                return
            connection.settimeout(None)
            wire.send(connection, wire.MAGIC)
            served = _Connection(connection, self._shard, self._dim, self._pushes, self._pulse)
            while True:
                served.answer()


class _Buffers:
    """Of a batch; kept from request to request, since new memory costs more than filling it."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._ids = np.empty(0, np.int64)
        self._occurrences = np.empty(0, np.uint32)
        self._rows = np.empty((0, dim), np.float32)

    def of(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
        if count > self._ids.size:
            self._ids = np.empty(count, np.int64)
            self._occurrences = np.empty(count, np.uint32)
            self._rows = np.empty((count, self._dim), np.float32)
        return self._ids[:count], self._occurrences[:count], self._rows[:count]


class _Connection:
    def __init__(
        self,
        connection: socket.socket,
        shard: LocalShard,
        dim: int,
        pushes: Pushes,
        pulse: Pulse,
    ) -> None:
        self._socket = connection
        self._shard = shard
        self._dim = dim
        self._pushes = pushes
        self._pulse = pulse
        self._buffers = _Buffers(dim)
        self._prepared: tuple[int, _Buffers] | None = None  # the push whose batch lies in them

    def answer(self) -> None:
        """One request; raises OSError or EOFError where the peer is gone, and nothing else."""
        packed = wire.receive(self._socket, wire.REQUEST_HEAD.size)
        kind, counts, worker, ids, global_step, push = wire.REQUEST_HEAD.unpack(packed)
        if kind not in iter(Request) or wire.batch_bytes(ids, self._dim) > wire.MOST_BYTES:
            raise EOFError("no worker of ours sends that")
        head = RequestHead(Request(kind), counts, worker, ids, global_step, push)
        keys, occurrences, rows = self._receive_batch(head)
        with self._pulse.beats(self._socket):
            outcome = Outcome.DONE
            body: bytes | NDArray[np.float32]
            try:
                body = self._do(head, keys, occurrences, rows)
            except Exception as error:
                outcome, body = Outcome.REFUSED, wire.pack_refusal(error)
        count = body.nbytes if isinstance(body, np.ndarray) else len(body)
        wire.send(self._socket, wire.ANSWER_HEAD.pack(outcome, count), body)

    def _receive_batch(
        self, head: RequestHead
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32] | None, NDArray[np.float32]]:
        keys, counts, rows = self._buffers.of(head.ids)
        wire.receive_into(self._socket, keys)
        occurrences = counts if head.counts else None
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
        match head.kind:
            case Request.SERVE | Request.LOOK_UP:
                if head.push:
                    self._pushes.wait_until_settled(head.worker, head.push)
                return self._shard.lookup(keys, head.kind is Request.LOOK_UP, rows, occurrences)
            case Request.APPLY:
                self._pushes.prepare(PushPart(head.worker, head.push, keys, rows, occurrences))
                self._commit(head)
            case Request.PREPARE:
                self._pushes.prepare(PushPart(head.worker, head.push, keys, rows, occurrences))
                self._prepared = head.push, self._buffers
                self._buffers = _Buffers(self._dim)
            case Request.COMMIT:
                self._commit(head)
            case Request.ABORT:
                self._pushes.abort(head.worker, head.push)
                self._take_back(head.push)
            case Request.PING:
                pass
        return b""

    def _commit(self, head: RequestHead) -> None:
        step = None if head.global_step < 0 else head.global_step
        self._pushes.commit(head.worker, head.push, step)
        self._take_back(head.push)

    def _take_back(self, push: int) -> None:
        """Nothing looks at its batch any more."""
        if self._prepared is not None and self._prepared[0] <= push:
            self._buffers = self._prepared[1]
            self._prepared = None
