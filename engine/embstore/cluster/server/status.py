"""What a server says of itself to whoever is at the cluster, and the name that it is found by."""

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

NAMESPACE = "embstore"  # of Ray's; every program's servers are in it
SERVER_NAME = "server/"  # which names of servers begin with
STATUS_GROUP = "status"  # of an actor's threads


@dataclass(frozen=True)
class TierStatus:
    kind: str
    path: str
    rows: int
    bytes: int  # that its rows take


@dataclass(frozen=True)
class ShardStatus:
    rows: int
    index_bytes: int
    tiers: list[TierStatus]
    # Over the last counted_shard.WINDOW_S.
    looked_up_ids_per_s: float
    applied_ids_per_s: float


@dataclass(frozen=True)
class ServerStatus:
    """shards: with its variable's name, its number, and how many the variable has.

    requests: how many of each kind of `wire.Request` have come, by its name.
    """

    shards: list[tuple[str, int, int, ShardStatus]]
    requests: dict[str, int]


def status_of(shard: CountedShard) -> ShardStatus:
    """Of one of this process's shards."""
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
