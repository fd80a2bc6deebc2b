"""The actor that holds a shard on its node. It is one of Ray's by what starts it alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore._shard import LocalShard, ShardSpec
from embstore._storage_places import prepare_places
from embstore.cluster.pushes import PushRules
from embstore.cluster.row_server import RowServer
from embstore.errors import EmbStoreError
from embstore.options import Tier

__all__ = ["Answer", "ShardActor", "ShardPlace"]


@dataclass(frozen=True)
class Answer:
    """What a method returned, or the embstore error that it raised."""

    value: Any = None
    error: EmbStoreError | None = None


@dataclass(frozen=True)
class ShardPlace:
    """What a shard needs to make on its node before it can be made."""

    variable: str
    shards: int
    tiers: Sequence[Tier]


class ShardActor:
    """Answers everything but look-ups and applies, which go over its `RowServer`."""

    def __init__(self) -> None:
        self._shard: LocalShard | None = None
        self._server: RowServer | None = None

    def node(self) -> tuple[str, int]:
        """Ray's id of this node, and the number of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def open(self, spec: ShardSpec, place: ShardPlace, host: str, rules: PushRules) -> Answer:
        """Makes the shard; the value is the `ServerAddress` that serves its rows."""
        try:
            prepare_places(place.tiers, place.variable, place.shards)
            self._shard = LocalShard(spec)
        except EmbStoreError as error:
            return Answer(error=error)
        self._server = RowServer(self._shard, spec.dim, host, rules)
        return Answer(self._server.address)

    def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Answer:
        try:
            return Answer(getattr(self._shard, method)(*arguments, **options))
        except EmbStoreError as error:
            return Answer(error=error)
        finally:
            if method == "close" and self._server is not None:
                self._server.close()
