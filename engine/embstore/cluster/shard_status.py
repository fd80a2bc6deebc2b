"""What a shard says of itself to whoever is at the cluster, and the name that it is found by."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import quote, unquote

from embstore.cluster.counted_shard import CountedShard

__all__ = ["NAMESPACE", "STATUS_GROUP", "ShardName", "ShardStatus", "TierStatus", "status_of"]

NAMESPACE = "embstore"  # of Ray's; every program's shards are in it
STATUS_GROUP = "status"  # of an actor's threads


@dataclass(frozen=True)
class ShardName:
    """The name of a shard's actor, which tells what it is even where the shard doesn't answer."""

    variable: str
    index: int
    shards: int
    unique: str

    @property
    def text(self) -> str:
        return f"{quote(self.variable, safe='')}/{self.index}/{self.shards}/{self.unique}"

    @classmethod
    def of(cls, text: str) -> ShardName:
        variable, index, shards, unique = text.split("/")
        return cls(unquote(variable), int(index), int(shards), unique)


@dataclass(frozen=True)
class TierStatus:
    kind: str
    path: str
    rows: int
    bytes: int  # that its rows take


@dataclass(frozen=True)
class ShardStatus:
    process_id: int
    rows: int
    index_bytes: int
    tiers: list[TierStatus]
    # Over the last counted_shard.WINDOW_S.
    looked_up_ids_per_s: float
    applied_ids_per_s: float


def status_of(shard: CountedShard) -> ShardStatus:
    """Of this process's shard."""
    stats = shard.stats()
    return ShardStatus(
        os.getpid(),
        shard.size(),
        int(stats["index_bytes"]),
        [
            TierStatus(tier["name"], tier["path"] or "", int(tier["rows"]), int(tier["bytes"]))
            for tier in stats["tiers"]
        ],
        shard.looked_up.per_s(),
        shard.applied.per_s(),
    )
