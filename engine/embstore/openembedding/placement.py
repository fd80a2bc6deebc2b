"""Determines from the flags where a model's tables are kept.

In OpenEmbedding a server has one cache. Here each table has its own, and the tables share the
server's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embstore.openembedding.checkpoints import MAX_KEPT
from embstore.openembedding.flags import Flags, checked
from embstore.openembedding.server_config import ServerConfig, server_config
from embstore.openembedding.servers import joined_servers
from embstore.options import StorageOption, StorageType
from embstore.table import checks
from embstore.table.storage_places import partition_numbers, tier_file

__all__ = ["Placement", "TableNeed", "placements", "shares"]

# Floats of a row in a pool for each weight; see StorageOption.durability. The optimizer isn't known
# yet, and has at most two slots.
_MAX_FLOATS_A_WEIGHT = 3
_POOL_HEADER_BYTES, _POOL_UNIT_BYTES = 64, 256
_BLOCK_BYTES = 4096  # of a file; the core uses whole blocks
_MAX_VERSIONS = MAX_KEPT + 1  # of a row in a pool: one in each checkpoint, and the present one
_MIN_POOL_ROWS = 2 * 4096  # a pool reserves 4096 places for copies


@dataclass(frozen=True)
class TableNeed:
    """The table's size. rows: the most that it can have; None: any int64 is a key. num_shards: None
    or -1: one on each server.
    """

    name: str
    dim: int
    rows: int | None
    num_shards: int | None


@dataclass(frozen=True)
class Placement:
    """The arguments of `embstore.keras.Embedding.place`."""

    storage: StorageOption
    partition_num: int
    shards: int | None


def placements(needs: Sequence[TableNeed], flags: Flags) -> list[Placement]:
    """Returns the placements of the tables of one model, which share the cache and the pools of
    `flags.config`.

    Joins the cluster that the flags name. Raises the errors of `checked`, `server_config` and
    `joined_servers`.
    """
    checked(flags)
    config = server_config(flags.config)
    has_servers = bool(flags.master_endpoint)
    servers = 1
    if has_servers:
        servers = joined_servers(flags, on_pmem=config.pmem_pool_root_path is not None)
    parts = [_shard_count(need, servers) for need in needs]
    storage = _storage(needs, config, parts, servers)
    if has_servers:
        return [Placement(each, 1, count) for each, count in zip(storage, parts, strict=True)]
    return [
        Placement(_not_smaller_than_kept(each, need.name, count), count, None)
        for each, need, count in zip(storage, needs, parts, strict=True)
    ]


def shares(total: int, weights: Sequence[int], limits: Sequence[int | None]) -> list[int]:
    """Divides `total` in proportion to the weights. If a part would exceed its limit in `limits`,
    the rest goes to the other parts.
    """
    parts = [0] * len(weights)
    unlimited = list(range(len(weights)))
    remaining = total
    while unlimited:
        weight = sum(weights[i] for i in unlimited)
        part = {i: remaining * weights[i] // weight for i in unlimited}
        filled = [i for i in unlimited if (limit := limits[i]) is not None and limit <= part[i]]
        if not filled:
            for i in unlimited:
                parts[i] = part[i]
            break
        for i in filled:
            parts[i] = limits[i] or 0
            remaining -= parts[i]
        unlimited = [i for i in unlimited if i not in filled]
    return parts


def _shard_count(need: TableNeed, servers: int) -> int:
    if need.num_shards is None or need.num_shards == -1:
        return servers
    return checks.integer("num_shards", need.num_shards, at_least=1)


def _storage(
    needs: Sequence[TableNeed], config: ServerConfig, parts: Sequence[int], servers: int
) -> list[StorageOption]:
    root = config.pmem_pool_root_path
    if root is None:
        return [StorageOption()] * len(needs)
    weights = [_row_bytes(need.dim) for need in needs]
    in_pool = [_pool_row_bytes(need.dim) for need in needs]
    cache = shares(config.cache_bytes, weights, _max_bytes(needs, weights, 1))
    pools = shares(config.pool_bytes, weights, _max_bytes(needs, in_pool, _MAX_VERSIONS))
    storage = []
    for need, count, cache_bytes, pool_bytes in zip(needs, parts, cache, pools, strict=True):
        shards_per_server = -(-count // servers)
        min_bytes = _MIN_POOL_ROWS * _pool_row_bytes(need.dim)
        sizes = (
            max(cache_bytes // shards_per_server, _row_bytes(need.dim)),
            min_bytes + pool_bytes // shards_per_server,
        )
        storage.append(StorageOption(StorageType.DRAM_PMEM, root, sizes, durability="checkpoint"))
    return storage


def _not_smaller_than_kept(storage: StorageOption, name: str, partitions: int) -> StorageOption:
    """Returns the storage with pools of at least the size of those that an earlier run left for the
    table, since a pool never shrinks.
    """
    cache, *pools = storage.tiers()
    if not pools:
        return storage
    files = [
        Path(f"{tier_file(pools[0], name, part)}.pool") for part in partition_numbers(partitions)
    ]
    kept_bytes = max((file.stat().st_size for file in files if file.is_file()), default=0)
    pool_bytes = -(-kept_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    return replace(
        storage, storage_size=(cache.size_bytes, max(pools[0].size_bytes or 0, pool_bytes))
    )


def _max_bytes(
    needs: Sequence[TableNeed], row_bytes: Sequence[int], copies: int
) -> list[int | None]:
    return [
        None if need.rows is None else copies * need.rows * size
        for need, size in zip(needs, row_bytes, strict=True)
    ]


def _row_bytes(dim: int) -> int:
    return _MAX_FLOATS_A_WEIGHT * ((dim + 3) // 4 * 16)


def _pool_row_bytes(dim: int) -> int:
    return -(-(_POOL_HEADER_BYTES + _row_bytes(dim)) // _POOL_UNIT_BYTES) * _POOL_UNIT_BYTES
