"""The actor that holds shards on its node. It is one of Ray's by what starts it alone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray.calls import Answer
from embstore.cluster.rows.connections import ServerAddress
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.rows.row_server import RowServer
from embstore.cluster.server.counted_shard import CountedShard
from embstore.cluster.server.node_settings import NodeSettings
from embstore.cluster.server.status import ServerStatus, status_of
from embstore.errors import ClosedError, EmbStoreError
from embstore.options import Tier
from embstore.table.shard import ShardSpec
from embstore.table.storage_places import prepare_places
from embstore.table.when_free import when_free

__all__ = ["ServerActor", "ShardPlace"]


@dataclass(frozen=True)
class ShardPlace:
    """What a shard needs on its node before it can be made; the shard is one of so many."""

    variable: str
    index: int
    shards: int
    tiers: Sequence[Tier]
    freed_within_s: float = 0.0  # that files may be in use for by a shard that was ended


class ServerActor:
    """Answers everything but look-ups and applies, which go over its `RowServer`.

    Shards go by the number of their table, which is never given twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_table = 0
        self._open: dict[int, tuple[ShardPlace, CountedShard]] = {}
        self._server: RowServer | None = None
        self._host = ""

    def node(self) -> tuple[str, int]:
        """Ray's id of this node, and the number of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def serve(self, host: str, rules: PushRules) -> ServerAddress:
        """host: the address of this node."""
        self._host = host
        self._server = RowServer(host, rules)
        return self._server.address

    def open(self, spec: ShardSpec, place: ShardPlace) -> Answer:
        """Makes a shard; the value is the number of its table here, and the resource that this node
        has and no other (`NodeSettings.place`).
        """
        settings = NodeSettings.of_this_process()
        try:
            tiers, spec = settings.settle(place.tiers, spec)
            prepare_places(tiers, place.variable, place.shards)
            shard = when_free(lambda: CountedShard(spec), place.freed_within_s)
        except EmbStoreError as error:
            return Answer(error=error)
        assert self._server is not None, "it serves before anything is opened"
        with self._lock:
            table, self._next_table = self._next_table, self._next_table + 1
            self._open[table] = place, shard
        self._server.add(table, shard)
        return Answer((table, settings.place(self._host)))

    def note_returned(self, worker: int) -> None:
        """Of the job: it sends nothing any more."""
        if self._server is not None:
            self._server.note_returned(worker)

    def status(self) -> ServerStatus:
        """Of the shards that are open."""
        with self._lock:
            shards = list(self._open.values())
        found = []
        for place, shard in shards:
            with contextlib.suppress(EmbStoreError):  # closed meanwhile
                found.append((place.variable, place.index, place.shards, status_of(shard)))
        requests = {} if self._server is None else self._server.requests()
        return ServerStatus(found, requests)

    def call(
        self, table: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Answer:
        with self._lock:
            _, shard = self._open.get(table, (None, None))
        if shard is None or self._server is None:
            return Answer(error=ClosedError("the shard is closed"))
        if method == "close":
            self._server.give_up_pushes(table)  # nothing of the shard is held any more
        try:
            answer = Answer(getattr(shard, method)(*arguments, **options))
        except EmbStoreError as error:
            return Answer(error=error)
        if method == "close":
            self._server.remove(table)
            with self._lock:
                self._open.pop(table, None)
        return answer
