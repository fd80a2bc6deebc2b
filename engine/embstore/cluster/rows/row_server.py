"""Serves the rows of a server's shards over sockets, with a thread for each connection."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.cluster.rows import wire
from embstore.cluster.rows.connections import ServerAddress
from embstore.cluster.rows.heartbeat import Heartbeat
from embstore.cluster.rows.pushes import Pushes, PushPart, PushRules, Refusals
from embstore.cluster.rows.wire import Outcome, PartHead, Request, RequestHead
from embstore.errors import ClosedError, EmbStoreError
from embstore.table.several_shards import GradientPart, ids_per_part, look_up_together
from embstore.table.shard import LocalShard

__all__ = ["RowServer"]

_GREETING_TIMEOUT_S = 10.0  # that a peer may take to send the token
_ACCEPT_RETRY_S = 0.05


class RowServer:
    """A server of rows, which listens on one address until `close()` or the process's end."""

    def __init__(self, host: str, rules: PushRules) -> None:
        self._shards: dict[int, LocalShard] = {}  # by the number of their table here
        self._pushes = Pushes(rules)
        self._heartbeat = Heartbeat()
        self._counting = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._is_closed = False
        self._listener = socket.create_server((host, 0))
        self.address = ServerAddress(
            host, self._listener.getsockname()[1], secrets.token_bytes(wire.TOKEN_BYTES)
        )
        threading.Thread(target=self._accept, name="embstore-accept", daemon=True).start()

    def add(self, table: int, shard: LocalShard) -> None:
        """Serves the shard under the table number."""
        self._pushes.add(table, shard)
        self._shards[table] = shard

    def give_up_pushes(self, table: int) -> None:
        """Refuses the table's pushes that aren't applied yet."""
        self._pushes.give_up(table)

    def note_returned(self, worker: int) -> None:
        """Records that the worker sends no more requests."""
        self._pushes.note_returned(worker)

    def remove(self, table: int) -> None:
        self._pushes.remove(table)
        self._shards.pop(table, None)

    def requests(self) -> dict[str, int]:
        """Returns the number of requests of each kind, by its name."""
        with self._counting:
            return dict(self._requests)

    def close(self) -> None:
        """Accepts no more connections. Open ones end when their workers close them."""
        self._pushes.close()
        self._heartbeat.close()
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        """Accepts connections until the listener is closed, whatever errors occur: without this
        thread all workers would consider the server lost.
        """
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # descriptors may have run out for a moment
                time.sleep(_ACCEPT_RETRY_S)
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(connection,), name="embstore-rows", daemon=True
                ).start()
            except (RuntimeError, MemoryError):  # no room for a thread; the peer may try again
                connection.close()
                time.sleep(_ACCEPT_RETRY_S)

    def _serve(self, connection: socket.socket) -> None:
        # A peer that vanishes is no error: it may connect again, and ask for the same.
        with connection, contextlib.suppress(OSError, EOFError):
            wire.prepare(connection)
            count = len(wire.MAGIC) + wire.TOKEN_BYTES
            greeting = wire.receive_within(connection, count, _GREETING_TIMEOUT_S)
            if not hmac.compare_digest(greeting, wire.MAGIC + self.address.token):
                return
            connection.settimeout(None)
            wire.send(connection, wire.MAGIC)
            served = _Connection(connection, self._shards, self._pushes, self._heartbeat)
            while True:
                kind = served.receive()
                with self._counting:
                    self._requests[kind.name] += 1
                served.answer()


class _Batches(NamedTuple):
    """The batches of a request's parts, one after the other. rows: gradients that came with the
    request, or room for the rows that it asks for.
    """

    heads: Sequence[PartHead]
    id_begins: list[int]
    row_begins: list[int]  # in floats
    ids: NDArray[np.int64]
    occurrences: NDArray[np.uint32] | None
    rows: NDArray[np.float32]

    def rows_of(self, part: int) -> NDArray[np.float32]:
        return self.rows[self.row_begins[part] : self.row_begins[part + 1]]

    def gradients(self) -> list[GradientPart]:
        gradient_parts = []
        id_counts = ids_per_part(self.id_begins, self.occurrences)
        for part, (begin, end) in enumerate(pairwise(self.id_begins)):
            occurrences = None if self.occurrences is None else self.occurrences[begin:end]
            rows = self.rows_of(part).reshape(end - begin, self.heads[part].dim)
            gradient_parts.append(
                GradientPart(self.ids[begin:end], rows, occurrences, id_counts[part])
            )
        return gradient_parts


_NO_BATCHES = _Batches([], [0], [0], np.empty(0, np.int64), None, np.empty(0, np.float32))


class _Buffers:
    """Buffers of a request, kept for the next one because new memory costs more than filling it."""

    def __init__(self) -> None:
        self.ids = np.empty(0, np.int64)
        self.occurrences = np.empty(0, np.uint32)
        self.rows = np.empty(0, np.float32)

    def make_room(self, ids: int, floats: int) -> None:
        if ids > self.ids.size:
            self.ids = np.empty(ids, np.int64)
            self.occurrences = np.empty(ids, np.uint32)
        if floats > self.rows.size:
            self.rows = np.empty(floats, np.float32)


class _Connection:
    """A worker's connection at the server: receives one request, then answers it."""

    def __init__(
        self,
        connection: socket.socket,
        shards: dict[int, LocalShard],
        pushes: Pushes,
        heartbeat: Heartbeat,
    ) -> None:
        self._socket = connection
        self._shards = shards
        self._pushes = pushes
        self._heartbeat = heartbeat
        self._buffers = _Buffers()
        # The pushes whose batches lie in the buffers, by table and number, and their worker.
        self._buffered_pushes: list[tuple[int, int]] = []
        self._buffered_worker = 0
        self._head = RequestHead(Request.PING)
        self._batches = _NO_BATCHES

    def receive(self) -> Request:
        """Receives a request. Raises OSError or EOFError for a lost peer or an invalid request."""
        packed = wire.receive(self._socket, wire.REQUEST_HEAD.size)
        kind, counts, worker, count, global_step = wire.REQUEST_HEAD.unpack(packed)
        if kind not in iter(Request) or count > wire.MAX_PARTS:
            raise EOFError("no worker of ours sends that")
        self._head = RequestHead(Request(kind), counts, worker, count, global_step)
        packed = wire.receive(self._socket, count * wire.PART_HEAD.size)
        heads = [PartHead(*fields) for fields in wire.PART_HEAD.iter_unpack(packed)]
        self._batches = self._receive_batches(heads)
        return self._head.kind

    def answer(self) -> None:
        """Carries out the request and answers. Raises OSError or EOFError if the peer is gone."""
        with self._heartbeat.sending_beside(self._socket):
            try:
                refusals = self._carry_out()
            except Exception as error:
                refusals = [error] * len(self._batches.heads)
        rows: list[NDArray[np.float32]] = []
        outcome, refusals_json = Outcome.DONE, b""
        if any(refusal is not None for refusal in refusals):
            outcome, refusals_json = Outcome.REFUSED, wire.pack_refusals(refusals)
        if self._head.kind in (Request.SERVE, Request.LOOK_UP):
            rows = [self._batches.rows]
            if outcome is Outcome.REFUSED:
                by_part = enumerate(refusals)
                rows = [self._batches.rows_of(i) for i, refusal in by_part if refusal is None]
        size = sum(part.nbytes for part in rows)
        wire.send(
            self._socket,
            wire.ANSWER_HEAD.pack(outcome, len(refusals_json), size),
            refusals_json,
            *rows,
        )

    def _receive_batches(self, heads: Sequence[PartHead]) -> _Batches:
        if sum(wire.batch_bytes(head.ids, head.dim) for head in heads) > wire.MAX_BYTES:
            raise EOFError("no worker of ours sends that")
        id_begins = [0, *accumulate(head.ids for head in heads)]
        row_begins = [0, *accumulate(head.ids * head.dim for head in heads)]
        if id_begins[-1]:
            if not self._pushes.are_settled(self._buffered_worker, self._buffered_pushes):
                self._buffers = _Buffers()  # unsettled pushes use the old buffers
            self._buffered_pushes = []
        buffers = self._buffers
        buffers.make_room(id_begins[-1], row_begins[-1])
        has_gradients = self._head.kind in (Request.APPLY, Request.PREPARE)
        batches = _Batches(
            heads,
            id_begins,
            row_begins,
            buffers.ids[: id_begins[-1]],
            buffers.occurrences[: id_begins[-1]] if self._head.counts else None,
            buffers.rows[: row_begins[-1]],
        )
        wire.receive_into(
            self._socket,
            batches.ids,
            buffers.occurrences[: id_begins[-1] if self._head.counts else 0],
            buffers.rows[: row_begins[-1] if has_gradients else 0],
        )
        return batches

    def _carry_out(self) -> Refusals:
        head = self._head
        pushes = [(part.table, part.push) for part in self._batches.heads]
        step = None if head.global_step < 0 else head.global_step
        match head.kind:
            case Request.SERVE | Request.LOOK_UP:
                return self._look_up()
            case Request.APPLY:
                refusals = self._prepare()
                if all(refusal is None for refusal in refusals):
                    return self._pushes.commit(head.worker, pushes, step)
                self._pushes.abort(head.worker, pushes)
                return refusals
            case Request.PREPARE:
                return self._prepare()
            case Request.COMMIT:
                return self._pushes.commit(head.worker, pushes, step)
            case Request.ABORT:
                return self._pushes.abort(head.worker, pushes)
            case Request.PING:
                return []

    def _look_up(self) -> Refusals:
        batches = self._batches
        refusals: Refusals = []
        shards: list[LocalShard] = []
        for head in batches.heads:
            try:
                shards.append(self._shard_to_look_up(head))
                refusals.append(None)
            except EmbStoreError as error:
                refusals.append(error)
        is_training = self._head.kind is Request.LOOK_UP
        if len(shards) == len(refusals):
            return look_up_together(
                shards,
                batches.ids,
                batches.id_begins,
                batches.rows,
                is_training,
                batches.occurrences,
            )
        remaining = iter(shards)
        for i, part in enumerate(batches.gradients()):
            if refusals[i] is None:
                ids, rows = part.ids, part.grads.reshape(-1)
                (refusals[i],) = look_up_together(
                    [next(remaining)], ids, [0, ids.size], rows, is_training, part.occurrences
                )
        return refusals

    def _shard_to_look_up(self, head: PartHead) -> LocalShard:
        """Returns the part's shard, once the push is settled that the look-up has to follow."""
        if head.push:
            self._pushes.wait_until_settled(self._head.worker, head.table, head.push)
        shard = self._shards.get(head.table)
        if shard is None:
            raise ClosedError("the shard is closed")
        return shard

    def _prepare(self) -> Refusals:
        pushes = [(head.table, head.push) for head in self._batches.heads]
        # A push without ids doesn't use the buffers, which an earlier push may still hold.
        if self._batches.ids.size:
            self._buffered_pushes, self._buffered_worker = pushes, self._head.worker
        gradients_of_pushes = zip(pushes, self._batches.gradients(), strict=True)
        return self._pushes.prepare(
            self._head.worker,
            [
                PushPart(table, number, gradients)
                for (table, number), gradients in gradients_of_pushes
            ],
        )
