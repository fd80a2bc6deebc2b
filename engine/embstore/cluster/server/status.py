"""The status that a server reports to any program of the cluster, and the name to find it by."""

from __future__ import annotations

from dataclasses import dataclass

from embstore.cluster.server.counted_shard import CountedShard

__all__ = [
    "NAMESPACE",
    "SERVER_NAME",
    "STATUS_GROUP",
    "ServerStatus",
    "ShardStatus",
    "TierStatus",
    "status_of",
]

NAMESPACE = "embstore"  # Ray's namespace of every program's servers
SERVER_NAME = "server/"  # the prefix of servers' names
STATUS_GROUP = "status"  # the actor's concurrency group for status calls


@dataclass(frozen=True)
class TierStatus:
    kind: str
    path: str
    rows: int
    bytes: int  # of its rows


@dataclass(frozen=True)
class ShardStatus:
    rows: int
    index_bytes: int
    tiers: list[TierStatus]
    # Averages over the last counted_shard.WINDOW_S.
    looked_up_ids_per_s: float
    applied_ids_per_s: float


@dataclass(frozen=True)
class ServerStatus:
    """The status of a server. shards: for each, its variable's name, its number, the variable's
    number of shards, its status.

    requests: number of requests of each kind of `wire.Request`, by its name.
    """

    shards: list[tuple[str, int, int, ShardStatus]]
    requests: dict[str, int]


def status_of(shard: CountedShard) -> ShardStatus:
    """Returns the status of one of this process's shards."""
    stats = shard.stats()
    return ShardStatus(
        shard.size(),
        int(stats["index_bytes"]),
        [
            TierStatus(tier["name"], tier["path"] or "", int(tier["rows"]), int(tier["bytes"]))
            for tier in stats["tiers"]
        ],
        shard.looked_up.per_s(),
        shard.applied.per_s(),
    )
