"""Makes variables: checks what is asked for, and says what each partition's shard is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from embstore import _checks, _core
from embstore._device_table import tabulate
from embstore._gpu import chosen_gpu
from embstore._shard import LocalShard, Shard, ShardSpec
from embstore._storage_places import partition_numbers, prepare_places, tier_file
from embstore._unlisted_checkpoints import discard_unlisted
from embstore.errors import InvalidArgumentError
from embstore.initializers import Initializer, TruncatedNormal, check_initializer, initial_rows
from embstore.optimizers import SGD, Optimizer, check_optimizer
from embstore.options import (
    TIER_KINDS,
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    IoScheme,
    SSDHashOption,
    StorageOption,
    TierKind,
)
from embstore.variable import EmbeddingVariable

__all__ = ["get_embedding_variable", "make_variable"]

_LEVELDB = TierKind.LEVELDB
_IN_FILES = (TierKind.SSDHASH, _LEVELDB)
_BESIDE_ROWS = (8, 16, 48, 64)  # bytes: a key, a RowMeta, a RowHeader, a pool's header

MAX_DIM = 1 << 16
MAX_PARTITIONS = 1 << 12


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    *,
    initializer: Initializer | None = None,
    optimizer: Optimizer | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    partition_num: int = 1,
    shards: int | None = None,
) -> EmbeddingVariable:
    """Makes a variable: an empty one, unless rows were kept for it (`SSDHashOption.keep_files`).

    name: names the variable in messages and its files; any text of at most 1000 bytes of UTF-8
        without NUL.
    embedding_dim: values a row.
    initializer: what rows start as; TruncatedNormal() where neither this nor
        `ev_option.init_option.initializer`, which wins, is given.
    optimizer: one of `embstore.optimizers`; without one the variable can't be trained.
    ev_option: where rows are kept, and how they start; DRAM where it isn't given.
    partition_num: tables that the keys are spread over, by a hash of the key; each has tiers of
        its own, of the full storage_size.
    shards: the same tables, but each in a process of its own on a Ray cluster; see
        `embstore.cluster`. None: they are in this process.

    Raises InvalidArgumentError, MissingLibraryError, MissingDeviceError, StoreFullError (memkind's
    node, or the GPU, has less room than storage_size) or StorageError.
    """
    _checks.variable_name(name)
    if ev_option is None:
        ev_option = EmbeddingVariableOption()
    elif not isinstance(ev_option, EmbeddingVariableOption):
        raise InvalidArgumentError(
            f"ev_option must be an embstore.EmbeddingVariableOption, got {type(ev_option).__name__}"
        )
    ev_option = replace(ev_option, storage_option=ev_option.storage_option.at_absolute_paths())
    if shards is not None:
        if partition_num != 1:
            raise InvalidArgumentError(
                f"partition_num must be left at 1 where shards is given, got {partition_num}: each "
                "shard is one partition"
            )
        from embstore.cluster.sharded_variable import make_sharded_variable  # few programs need it

        return make_sharded_variable(
            name,
            embedding_dim,
            initializer=initializer,
            optimizer=optimizer,
            ev_option=ev_option,
            shards=shards,
        )
    return make_variable(
        name,
        embedding_dim,
        initializer=initializer,
        optimizer=optimizer,
        ev_option=ev_option,
        partition_num=partition_num,
    )


def make_variable(
    name: str,
    embedding_dim: int,
    *,
    initializer: Initializer | None = None,
    optimizer: Optimizer | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    partition_num: int = 1,
    make_shard: Callable[[ShardSpec], Shard] = LocalShard,
    elsewhere: bool = False,
    discards_unlisted: bool = True,
) -> EmbeddingVariable:
    """As `get_embedding_variable`, with the shards that `make_shard` makes.

    elsewhere: each in a process of its own, perhaps on another computer: so `make_shard` sees to
        directories, and no two shards share a file.
    discards_unlisted: gives up what durable pools have that was never called durable.
    """
    dim = _checks.integer("embedding_dim", embedding_dim, at_least=1, at_most=MAX_DIM)
    partitions = _checks.integer("partition_num", partition_num, at_least=1, at_most=MAX_PARTITIONS)
    if initializer is not None:
        check_initializer(initializer)
    if optimizer is not None:
        check_optimizer(optimizer)
    ev_option = ev_option or EmbeddingVariableOption()
    specs = _shard_specs(
        name, dim, initializer or TruncatedNormal(), optimizer, ev_option, partitions, elsewhere
    )
    shards: list[Shard] = []
    try:
        for spec in specs:
            shards.append(make_shard(spec))
        variable = EmbeddingVariable(name, dim, optimizer, ev_option, shards)
        if discards_unlisted and ev_option.storage_option.durability is not None:
            discard_unlisted(variable)
        return variable
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def _shard_specs(
    name: str,
    dim: int,
    initializer: Initializer,
    optimizer: Optimizer | None,
    option: EmbeddingVariableOption,
    partitions: int,
    elsewhere: bool,
) -> list[ShardSpec]:
    init = option.init_option
    if init.initializer is not None:
        initializer = init.initializer
    default_values = initial_rows(initializer, (init.default_value_dim, dim))
    # A variable that is never trained still needs rows without slots: those of SGD.
    core_optimizer = optimizer if optimizer is not None else SGD(learning_rate=0.0)
    tiers = option.storage_option.tiers()
    devices = _core_devices(option.storage_option, dim, len(core_optimizer.slots))
    # What this process says of it holds for shards elsewhere, too.
    has_hbm = any(tier.kind is TierKind.HBM for tier in tiers)
    gpu = chosen_gpu(option.storage_option.device) if has_hbm else None
    if not elsewhere:
        prepare_places(tiers, name, partitions)
    return [
        ShardSpec(
            # What kept files are known by: with another partition_num a key lies elsewhere.
            name=name if partition is None else f"{name}.part{partition} of {partitions}",
            dim=dim,
            default_values=default_values,
            optimizer=core_optimizer.name,
            optimizer_params=core_optimizer.params(),
            tiers=[
                (
                    tier.kind.value,
                    # Partitions here share a LevelDB: each costs descriptors and buffers.
                    tier_file(
                        tier, name, None if not elsewhere and tier.kind is _LEVELDB else partition
                    ),
                    tier.size_bytes,
                )
                for tier in tiers
            ],
            cache_strategy=option.storage_option.cache_strategy.name,
            filter=_core_filter(option.filter_option),
            no_permission_value=init.default_value_no_permission,
            ssd_hash=_core_ssd_hash(option.storage_option),
            keeps_rows=option.storage_option.keeps_rows,
            devices=devices,
            partition_count=partitions,
            gpu=gpu,
        )
        for partition in partition_numbers(partitions)
    ]


def _core_filter(
    option: CounterFilter | CBFFilter | None,
) -> tuple[int, tuple[int, float, int] | None] | None:
    if option is None:
        return None
    if isinstance(option, CounterFilter):
        return option.filter_freq, None
    sketch = (
        option.max_element_size,
        option.false_positive_probability,
        option.counter_bits,
    )
    return option.filter_freq, sketch


def _core_ssd_hash(storage: StorageOption) -> tuple[bool, str, int, int]:
    option = storage.ssdhash_option or SSDHashOption()
    return (
        option.direct_io,
        IoScheme(option.io_scheme).value,
        option.file_bytes,
        option.buffer_bytes,
    )


def _core_devices(
    storage: StorageOption, dim: int, slots: int
) -> tuple[_core.DeviceTuple | None, ...]:
    block = (dim + 3) // 4 * 16
    row = (1 + slots) * block
    # What is ever touched at once: of a row, and of what lies beside it or, in a pool, before it.
    sizes = (4 * dim, block, row, 64 + block, 64 + row, *_BESIDE_ROWS)
    return tuple(
        None
        if device is None
        else tabulate(f"devices[{i}]", device, sizes, in_files=kind in _IN_FILES).core()
        for i, (device, kind) in enumerate(
            zip(storage.tier_devices(), TIER_KINDS[storage.storage_type], strict=True)
        )
    )
