"""Makes variables of local or remote shards, from the specification of each partition's shard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from embstore.checkpoint.persist.earlier_runs import check_no_earlier_run, discard_unlisted
from embstore.devices.device_table import DeviceTable, tabulate
from embstore.errors import EmbStoreError
from embstore.gpu.choice import chosen_gpu
from embstore.initializers import (
    Initializer,
    TruncatedNormal,
    initial_rows,
    to_initializer,
    with_seed_of,
)
from embstore.optimizers import SGD, Optimizer, check_optimizer
from embstore.options import (
    TIER_KINDS,
    EmbeddingVariableOption,
    SSDHashOption,
    StorageOption,
    TierKind,
)
from embstore.table import checks
from embstore.table.shard import LocalShard, Shard, ShardSpec, TierSpec
from embstore.table.storage_places import partition_numbers, prepare_places, tier_file
from embstore.variable import EmbeddingVariable

__all__ = ["MAX_DIM", "MAX_PARTITIONS", "VariableRequest", "make_variable"]

_LEVELDB = TierKind.LEVELDB
_FILE_TIERS = (TierKind.SSDHASH, _LEVELDB)
_HEADER_BYTES = (8, 16, 48, 64)  # bytes: a key, a RowMeta, a RowHeader, a pool's header

MAX_DIM = 1 << 16
MAX_PARTITIONS = 1 << 12


@dataclass(frozen=True)
class VariableRequest:
    """The arguments of `get_embedding_variable`."""

    name: str
    embedding_dim: int
    ev_option: EmbeddingVariableOption
    initializer: Initializer | type[Initializer] | None = None
    optimizer: Optimizer | None = None
    restores: bool = False


def make_variable(
    request: VariableRequest,
    partition_num: int,
    make_shard: Callable[[ShardSpec], Shard] = LocalShard,
    *,
    is_remote: bool = False,
    discards_unlisted: bool = True,
) -> EmbeddingVariable:
    """Makes a variable whose shards `make_shard` makes.

    is_remote: the shards lie in processes of their own, perhaps on other computers:
        `make_shard` makes the directories, and no two shards share a file.
    discards_unlisted: discards the checkpoints in durable pools that were never listed as durable.
    """
    name, optimizer, ev_option = request.name, request.optimizer, request.ev_option
    dim = checks.integer("embedding_dim", request.embedding_dim, at_least=1, at_most=MAX_DIM)
    partitions = checks.integer("partition_num", partition_num, at_least=1, at_most=MAX_PARTITIONS)
    initializer: Initializer = TruncatedNormal()
    if request.initializer is not None:
        initializer = to_initializer(request.initializer)
    if optimizer is not None:
        check_optimizer(optimizer)
    specs = _shard_specs(name, dim, initializer, optimizer, ev_option, partitions, is_remote)
    shards: list[Shard] = []
    try:
        for spec in specs:
            shards.append(make_shard(spec))
        variable = EmbeddingVariable(name, dim, optimizer, ev_option, shards)
        if ev_option.storage_option.durability is not None:
            if discards_unlisted:
                discard_unlisted(variable)
            if not request.restores:
                check_no_earlier_run(variable)
        return variable
    except BaseException:
        for shard in shards:
            with suppress(EmbStoreError):  # the first error is raised
                shard.close()
        raise


def _shard_specs(
    name: str,
    dim: int,
    initializer: Initializer,
    optimizer: Optimizer | None,
    option: EmbeddingVariableOption,
    partitions: int,
    is_remote: bool,
) -> list[ShardSpec]:
    init = option.init_option
    if init.initializer is not None:
        initializer = to_initializer(init.initializer)
    default_values = initial_rows(with_seed_of(name, initializer), (init.default_value_dim, dim))
    # A variable without an optimizer gets rows without slots: those of SGD.
    core_optimizer = optimizer if optimizer is not None else SGD(learning_rate=0.0)
    tiers = option.storage_option.tiers()
    devices = _device_tables(option.storage_option, dim, len(core_optimizer.slots))
    # This process's choice of a GPU holds for remote shards, too.
    has_hbm = any(tier.kind is TierKind.HBM for tier in tiers)
    gpu = chosen_gpu(option.storage_option.device) if has_hbm else None
    if not is_remote:
        prepare_places(tiers, name, partitions)
    return [
        ShardSpec(
            # Identifies kept files: with another partition_num keys lie in other partitions.
            name=name if partition is None else f"{name}.part{partition} of {partitions}",
            dim=dim,
            default_values=default_values,
            optimizer=core_optimizer.name,
            optimizer_params=core_optimizer.params(),
            tiers=[
                TierSpec(
                    tier.kind,
                    # Local partitions share a LevelDB: each costs file descriptors and buffers.
                    tier_file(
                        tier, name, None if not is_remote and tier.kind is _LEVELDB else partition
                    ),
                    tier.size_bytes,
                )
                for tier in tiers
            ],
            cache_strategy=option.storage_option.cache_strategy.name,
            filter=option.filter_option,
            no_permission_value=init.default_value_no_permission,
            ssdhash=option.storage_option.ssdhash_option or SSDHashOption(),
            keeps_rows=option.storage_option.keeps_rows,
            devices=devices,
            partition_count=partitions,
            gpu=gpu,
            evict_option=option.evict_option,
        )
        for partition in partition_numbers(partitions)
    ]


def _device_tables(storage: StorageOption, dim: int, slots: int) -> tuple[DeviceTable | None, ...]:
    block = (dim + 3) // 4 * 16
    row = (1 + slots) * block
    # All sizes of accesses: weights, blocks and rows, also after a pool's header, and headers.
    sizes = (4 * dim, block, row, 64 + block, 64 + row, *_HEADER_BYTES)
    return tuple(
        None
        if device is None
        else tabulate(f"devices[{i}]", device, sizes, in_files=kind in _FILE_TIERS)
        for i, (device, kind) in enumerate(
            zip(storage.tier_devices(), TIER_KINDS[storage.storage_type], strict=True)
        )
    )
