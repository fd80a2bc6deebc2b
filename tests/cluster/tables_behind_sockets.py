"""Tables of Keras models with shards behind row servers in this process: they need no Ray."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from row_connection import ActorHere

import embstore as es
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.rows.remote_shard import RemoteShard
from embstore.cluster.rows.row_server import RowServer
from embstore.cluster.rows.server_link import ServerLink
from embstore.table.making import VariableRequest, make_variable
from embstore.table.shard import LocalShard, Shard, ShardSpec

__all__ = ["TablesBehindSockets"]


class TablesBehindSockets:
    """Replaces what `shards=` makes, until the test ends: shard i of each table is at server i.

    local: the shards by name.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.local: dict[str, LocalShard] = {}
        self.servers: list[RowServer] = []
        self._links: list[ServerLink] = []
        self._of_server: list[dict[int, LocalShard]] = []
        self._open = contextlib.ExitStack()
        monkeypatch.setattr(
            "embstore.cluster.sharded_variable.make_sharded_variable", self._variable
        )

    def close(self) -> None:
        self._open.close()

    def looked_up(self) -> int:
        """Returns the number of ids that were read in all shards, repeated ids included."""
        return sum(
            int(shard.stats()["hits"] + shard.stats()["misses"]) for shard in self.local.values()
        )

    def _variable(self, request: VariableRequest, shards: int) -> es.EmbeddingVariable:
        numbers = itertools.count()

        def make_shard(spec: ShardSpec) -> Shard:
            number = next(numbers)
            if number == len(self.servers):
                self._start_server()
            local = self.local[spec.name] = LocalShard(spec)
            table = len(self._of_server[number])
            self._of_server[number][table] = local
            self.servers[number].add(table, local)
            self._open.callback(local.close)
            return RemoteShard(
                self._links[number], table, spec, close_shared=lambda: None
            ).as_shard()

        variable = make_variable(request, shards, make_shard, is_remote=True)
        self._open.callback(variable.close)
        return variable

    def _start_server(self) -> None:
        server = RowServer("127.0.0.1", PushRules())
        shards: dict[int, LocalShard] = {}
        actor: Any = ActorHere(shards)
        self._links.append(ServerLink(actor, len(self.servers), server.address))
        self.servers.append(server)
        self._of_server.append(shards)
        self._open.callback(server.close)
