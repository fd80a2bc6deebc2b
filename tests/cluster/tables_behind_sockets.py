"""Tables of Keras models whose shards are behind row servers in this process: no Ray is needed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from row_connection import ActorHere

import embstore as es
from embstore._shard import LocalShard, Shard, ShardSpec
from embstore._variable_making import make_variable
from embstore.cluster.pushes import PushRules
from embstore.cluster.remote_shard import Membership, RemoteShard
from embstore.cluster.row_server import RowServer

__all__ = ["TablesBehindSockets"]


class TablesBehindSockets:
    """What `shards=` makes while it is in use; `local` has the shards of each name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.local: dict[str, LocalShard] = {}
        self._open = contextlib.ExitStack()
        monkeypatch.setattr(
            "embstore.cluster.sharded_variable.make_sharded_variable", self._variable
        )

    def close(self) -> None:
        self._open.close()

    def looked_up(self) -> int:
        """So many ids were read in all shards, each as often as it occurred."""
        return sum(
            int(shard.stats()["hits"] + shard.stats()["misses"]) for shard in self.local.values()
        )

    def _variable(
        self, name: str, embedding_dim: int, *, shards: int, **given: Any
    ) -> es.EmbeddingVariable:

        def make_shard(spec: ShardSpec) -> Shard:
            local = self.local[spec.name] = LocalShard(spec)
            server = RowServer(local, spec.dim, "127.0.0.1", PushRules())
            self._open.callback(local.close)
            self._open.callback(server.close)
            membership = Membership(worker=0, silence_s=20.0, leave=lambda: None)
            actor: Any = ActorHere(local)
            return RemoteShard(actor, spec, server.address, membership)

        given["ev_option"] = given["ev_option"] or es.EmbeddingVariableOption()
        variable = make_variable(
            name,
            embedding_dim,
            partition_num=shards,
            make_shard=make_shard,
            elsewhere=True,
            **given,
        )
        self._open.callback(variable.close)
        return variable
