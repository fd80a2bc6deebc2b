"""The actor that holds a shard on its node. It is one of Ray's by what starts it alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore._shard import ShardSpec
from embstore._storage_places import prepare_places
from embstore.cluster.counted_shard import CountedShard
from embstore.cluster.node_settings import NodeSettings
from embstore.cluster.pushes import PushRules
from embstore.cluster.row_server import RowServer
from embstore.cluster.shard_status import ShardStatus, status_of
from embstore.cluster.when_free import when_free
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
    """What a shard needs on its node before it can be made."""

    variable: str
    shards: int
    tiers: Sequence[Tier]
    freed_within_s: float = 0.0  # that files may be in use for by a shard that was ended


class ShardActor:
    """Answers everything but look-ups and applies, which go over its `RowServer`."""

    def __init__(self) -> None:
        self._shard: CountedShard | None = None
        self._server: RowServer | None = None

    def node(self) -> tuple[str, int]:
        """Ray's id of this node, and the number of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def open(self, spec: ShardSpec, place: ShardPlace, host: str, rules: PushRules) -> Answer:
        """Makes the shard; the value is the `ServerAddress` that serves its rows, and the resource
        that this node has and no other (`NodeSettings.place`).
        """
        settings = NodeSettings.of_this_process()
        try:
            tiers, spec = settings.settle(place.tiers, spec)
            prepare_places(tiers, place.variable, place.shards)
            self._shard = when_free(lambda: CountedShard(spec), place.freed_within_s)
        except EmbStoreError as error:
            return Answer(error=error)
        self._server = RowServer(self._shard, spec.dim, host, rules)
        return Answer((self._server.address, settings.place(host)))

    def status(self) -> ShardStatus | None:
        """None until it is open, and after it was closed."""
        shard = self._shard
        try:
            return None if shard is None else status_of(shard)
        except EmbStoreError:
            return None

    def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Answer:
        if method == "close" and self._server is not None:
            self._server.give_up_pushes()  # nothing of the shard is held any more
        try:
            return Answer(getattr(self._shard, method)(*arguments, **options))
        except EmbStoreError as error:
            return Answer(error=error)
        finally:
            if method == "close" and self._server is not None:
                self._server.close()
