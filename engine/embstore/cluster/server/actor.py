"""The actor that holds shards on its node. It depends on Ray only in how it is started."""

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
from embstore.table.retry import retry_while_in_use
from embstore.table.shard import ShardSpec
from embstore.table.storage_places import prepare_places

__all__ = ["ServerActor", "ShardPlace"]


@dataclass(frozen=True)
class ShardPlace:
    """The variable that a shard belongs to, the shard's index in it, and the tiers to prepare."""

    variable: str
    index: int
    shards: int
    tiers: Sequence[Tier]
    freed_within_s: float = 0.0  # time to wait for files that an ended shard may still use


class ServerActor:
    """A server. It answers all calls except look-ups and applies, which go over its `RowServer`.

    Each shard is identified by the number of its table here. Numbers are never reused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_table = 0
        self._open: dict[int, tuple[ShardPlace, CountedShard]] = {}
        self._server: RowServer | None = None
        self._host = ""

    def node(self) -> tuple[str, int]:
        """Returns Ray's id of this node, and this process's id."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def serve(self, host: str, rules: PushRules) -> ServerAddress:
        """Starts serving rows at `host`, the address of this node, and returns where."""
        self._host = host
        self._server = RowServer(host, rules)
        return self._server.address

    def open(self, spec: ShardSpec, place: ShardPlace) -> Answer:
        """Makes a shard. The answer's value is the number of its table here, and the resource that
        only this node has (`NodeSettings.place`).
        """
        settings = NodeSettings.of_this_process()
        try:
            tiers, spec = settings.settle(place.tiers, spec)
            prepare_places(tiers, place.variable, place.shards)
            shard = retry_while_in_use(lambda: CountedShard(spec), place.freed_within_s)
        except EmbStoreError as error:
            return Answer(error=error)
        assert self._server is not None, "it serves before anything is opened"
        with self._lock:
            table, self._next_table = self._next_table, self._next_table + 1
            self._open[table] = place, shard
        self._server.add(table, shard)
        return Answer((table, settings.place(self._host)))

    def note_returned(self, worker: int) -> None:
        """Records that this worker of the job sends no more requests."""
        if self._server is not None:
            self._server.note_returned(worker)

    def status(self) -> ServerStatus:
        """Returns the status of all open shards."""
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
            self._server.give_up_pushes(table)  # releases each place that a push holds in the shard
        try:
            answer = Answer(getattr(shard, method)(*arguments, **options))
        except EmbStoreError as error:
            return Answer(error=error)
        if method == "close":
            self._server.remove(table)
            with self._lock:
                self._open.pop(table, None)
        return answer
