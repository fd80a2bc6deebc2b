"""A worker's link to a server: requests that concern several of its shards at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.cluster.ray.calls import Answer
from embstore.cluster.rows import wire
from embstore.cluster.rows.connections import Connections, ServerAddress
from embstore.cluster.rows.exchange import Exchange
from embstore.cluster.rows.wire import Request, RequestHead
from embstore.errors import EmbStoreError, StorageError
from embstore.table.remote_shards import LookUpPart, PendingReply, Refusals, UpdatePart

__all__ = ["Actor", "ServerLink", "ServerLinks"]


class Actor(Protocol):
    """A server's actor, which answers everything but rows. node: the address of its node."""

    node: str
    process_id: int

    def call(
        self,
        table: int,
        method: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        check_alive: Callable[[], None],
    ) -> Answer:
        """Does what `ServerHandle.call` does."""
        ...


class ServerLink:
    """One worker's link to a server, for all tables that have a shard there.

    Its methods send a request and return; the reply's wait() returns each part's error or None. If
    the server is gone, every part has an error.

    prepare_order: all workers prepare at servers in this order.
    worker: the worker's number, among those that push to the server's shards.
    prepares_in_turn: pushes must be prepared at one server after the other, in `prepare_order`:
        they have no other worker's part, so other pushes may come in between, and a nearly full
        shard holds one push at a time. Two pushes that took their shards in different orders would
        wait for each other.
    silence_s: seconds without a sign of life after which the server is considered gone.
    """

    def __init__(
        self,
        actor: Actor,
        prepare_order: int,
        address: ServerAddress,
        *,
        worker: int = 0,
        silence_s: float = 30.0,
        prepares_in_turn: bool = False,
    ) -> None:
        self.actor = actor
        self.prepare_order = prepare_order
        self.address = address
        self.prepares_in_turn = prepares_in_turn
        self.silence_s = silence_s
        self.lost: str | None = None  # the reason, once it is lost
        self.users = 0  # number of shards; guarded by the lock of the ServerLinks
        self._worker = worker
        where = f"the server on node {actor.node}"
        self._connections = Connections(address, where, silence_s)

    def look_up(self, parts: Sequence[LookUpPart], train: bool) -> PendingReply:
        kind = Request.LOOK_UP if train else Request.SERVE
        return self._ask(kind, parts, [part.after_push for part in parts])

    def fit_one_request(self, parts: Sequence[UpdatePart]) -> bool:
        """Returns whether one request has room for all parts."""
        sizes = [wire.batch_bytes(part.ids.size, part.shard.dim) for part in parts]
        return sum(sizes) <= wire.MAX_BYTES and len(parts) <= wire.MAX_PARTS

    def apply(self, parts: Sequence[UpdatePart], global_step: int | None) -> PendingReply:
        """Applies all parts or none. REQUIRES: one request has room for them."""
        return self._push(Request.APPLY, parts, global_step)

    def prepare(self, parts: Sequence[UpdatePart]) -> PendingReply:
        """Does the steps of an apply that may fail; no row changes."""
        return self._push(Request.PREPARE, parts)

    def commit(self, parts: Sequence[UpdatePart], global_step: int | None) -> PendingReply:
        """Applies prepared parts."""
        return self._push(Request.COMMIT, parts, global_step)

    def abort(self, parts: Sequence[UpdatePart]) -> PendingReply:
        """Gives prepared parts up. Parts that were committed or given up before are left alone."""
        return self._push(Request.ABORT, parts)

    def ping(self) -> None:
        """Raises OSError or EOFError if the server is gone; StorageError if that is unknown."""
        head = wire.REQUEST_HEAD.pack(*RequestHead(Request.PING, worker=self._worker))
        Exchange(self._connections, [head], [], []).wait()

    def close(self) -> None:
        self._connections.close()

    def _push(
        self, kind: Request, parts: Sequence[UpdatePart], global_step: int | None = None
    ) -> PendingReply:
        return self._ask(kind, parts, [part.number for part in parts], global_step)

    def _ask(
        self,
        kind: Request,
        parts: Sequence[LookUpPart | UpdatePart],
        pushes: Sequence[int],
        global_step: int | None = None,
    ) -> PendingReply:
        refusals: Refusals = [None] * len(parts)
        shards = [part.shard for part in parts]
        has_batches = kind not in (Request.COMMIT, Request.ABORT)
        counts = [part.ids.size if has_batches else 0 for part in parts]
        to_send = []
        for i, shard in enumerate(shards):
            try:
                shard.check_can_send(counts[i])
                to_send.append(i)
            except EmbStoreError as error:
                refusals[i] = error
        if kind is Request.APPLY and len(to_send) < len(parts):
            to_send = []
        exchanges: list[tuple[list[int], Exchange]] = []
        sizes = [
            wire.batch_bytes(count, shard.dim) for count, shard in zip(counts, shards, strict=True)
        ]
        for indices in _split_into_requests(to_send, sizes):
            packed = [
                wire.PART_HEAD.pack(shards[i].table, shards[i].dim, counts[i], pushes[i])
                for i in indices
            ]
            message, outs = self._message(kind, packed, [parts[i] for i in indices], global_step)
            part_places = [shards[i].where for i in indices]
            try:
                exchanges.append((indices, Exchange(self._connections, message, outs, part_places)))
            except EmbStoreError as error:
                for i in indices:
                    refusals[i] = error

        def wait() -> Refusals:
            for indices, exchange in exchanges:
                try:
                    answered: Refusals = exchange.wait()
                except EmbStoreError as error:
                    answered = [error] * len(indices)
                    if kind is Request.COMMIT and isinstance(error, StorageError):
                        # Other servers may have committed their part, so the rows of this server no
                        # longer fit.
                        self.lost = self.lost or str(error)
                        answered = [shards[i].lost_error() for i in indices]
                except (OSError, EOFError) as error:
                    self.lost = self.lost or str(error) or type(error).__name__
                    answered = [shards[i].lost_error() for i in indices]
                for i, refusal in zip(indices, answered, strict=True):
                    refusals[i] = refusal
            return refusals

        def give_up() -> None:
            for _, exchange in exchanges:
                exchange.give_up()

        return PendingReply(wait, give_up)

    def _message(
        self,
        kind: Request,
        heads: Sequence[bytes],
        parts: Sequence[LookUpPart | UpdatePart],
        global_step: int | None,
    ) -> tuple[list[bytes | NDArray[Any]], list[NDArray[np.float32]]]:
        """Returns the message, and the arrays that its rows are received into. heads: packed, one
        for each part.
        """
        ids: list[NDArray[np.int64]] = []
        occurrences: list[NDArray[np.uint32]] = []
        grads: list[NDArray[np.float32]] = []
        if kind not in (Request.COMMIT, Request.ABORT):
            ids = [part.ids for part in parts]
            occurrences = [part.occurrences for part in parts if part.occurrences is not None]
        if kind in (Request.APPLY, Request.PREPARE):
            grads = [part.grads for part in parts if isinstance(part, UpdatePart)]
        head = RequestHead(
            kind,
            bool(occurrences),
            self._worker,
            len(parts),
            -1 if global_step is None else global_step,
        )
        outs = [part.out for part in parts if isinstance(part, LookUpPart)]
        return [wire.REQUEST_HEAD.pack(*head), b"".join(heads), *ids, *occurrences, *grads], outs


class ServerLinks:
    """This worker's links, one for each server, each kept for as long as a shard needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[ServerAddress, ServerLink] = {}

    def use(self, address: ServerAddress, make: Callable[[], ServerLink]) -> ServerLink:
        """Returns the link to the server; makes it if there is none, or the old one is lost."""
        with self._lock:
            link = self._links.get(address)
            if link is None or link.lost is not None:
                link = self._links[address] = make()
            link.users += 1
            return link

    def leave(self, link: ServerLink) -> None:
        with self._lock:
            link.users -= 1
            if link.users:
                return
            if self._links.get(link.address) is link:
                del self._links[link.address]
        link.close()


def _split_into_requests(parts: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yields the parts for each request, in as few requests as possible."""
    indices: list[int] = []
    total = 0
    for part in parts:
        if indices and (total + sizes[part] > wire.MAX_BYTES or len(indices) == wire.MAX_PARTS):
            yield indices
            indices, total = [], 0
        indices.append(part)
        total += sizes[part]
    if indices:
        yield indices
