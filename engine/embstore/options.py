"""Options: where and how a variable keeps its rows. Names and defaults are DeepRec's."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from embstore.devices import Device
from embstore.devices.device_table import check_device
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import check_gpu
from embstore.initializers import Initializer, to_initializer
from embstore.table import checks

__all__ = [
    "NODE_PMEM",
    "CBFFilter",
    "CacheStrategy",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "IoScheme",
    "L2WeightEvict",
    "SSDHashOption",
    "StorageOption",
    "StorageType",
    "Tier",
    "TierKind",
]

Path: TypeAlias = "str | os.PathLike[str]"

_OFF = -1.0  # as in DeepRec: the threshold is off

DEFAULT_TIER_BYTES = 1 << 30

# A storage_path that stands for the --pmem of the server (`python -m embstore.server`) on the
# shard's node. Servers may have different paths, and this process need not know them.
NODE_PMEM = "node:pmem"


class StorageType(enum.IntEnum):
    """A name for an ordered list of tiers (see `TIER_KINDS`), fastest first."""

    DRAM = 1
    PMEM_MEMKIND = 2
    PMEM_LIBPMEM = 3
    SSDHASH = 4
    LEVELDB = 5
    HBM = 6
    DRAM_PMEM = 11
    DRAM_SSDHASH = 12
    HBM_DRAM = 13
    DRAM_LEVELDB = 14
    DRAM_PMEM_SSDHASH = 101
    HBM_DRAM_SSDHASH = 102
    DRAM_PMEM_LEVELDB = 103
    HBM_DRAM_LEVELDB = 104
    HBM_DRAM_PMEM = 105
    HBM_DRAM_PMEM_LEVELDB = 106
    HBM_DRAM_PMEM_SSDHASH = 107


class CacheStrategy(enum.IntEnum):
    """Which row a full tier evicts to the next one: the least recent or the least frequent."""

    LRU = 0
    LFU = 1


class TierKind(enum.Enum):
    """The kind of a tier, one level of storage."""

    HBM = "HBM"
    DRAM = "DRAM"
    PMEM = "PMEM"  # libpmem if the tier has a path, else memkind
    PMEM_LIBPMEM = "PMEM_LIBPMEM"
    PMEM_MEMKIND = "PMEM_MEMKIND"
    PMEM_POOL = "PMEM_POOL"  # PMEM whose rows outlive the process at checkpoints
    SSDHASH = "SSDHASH"
    LEVELDB = "LEVELDB"


class IoScheme(enum.Enum):
    """How the SSDHASH tier reads rows."""

    AUTO = "auto"  # the quickest way here: from the page cache, by io_uring, or by pread
    IO_URING = "io_uring"  # an error if this process can't use io_uring
    PREAD = "pread"


_HBM, _DRAM, _PMEM = TierKind.HBM, TierKind.DRAM, TierKind.PMEM
_SSDHASH, _LEVELDB = TierKind.SSDHASH, TierKind.LEVELDB

TIER_KINDS: Mapping[StorageType, tuple[TierKind, ...]] = MappingProxyType(
    {
        StorageType.DRAM: (_DRAM,),
        StorageType.PMEM_MEMKIND: (TierKind.PMEM_MEMKIND,),
        StorageType.PMEM_LIBPMEM: (TierKind.PMEM_LIBPMEM,),
        StorageType.SSDHASH: (_DRAM, _SSDHASH),
        StorageType.LEVELDB: (_DRAM, _LEVELDB),
        StorageType.HBM: (_HBM,),
        StorageType.DRAM_PMEM: (_DRAM, _PMEM),
        StorageType.DRAM_SSDHASH: (_DRAM, _SSDHASH),
        StorageType.HBM_DRAM: (_HBM, _DRAM),
        StorageType.DRAM_LEVELDB: (_DRAM, _LEVELDB),
        StorageType.DRAM_PMEM_SSDHASH: (_DRAM, _PMEM, _SSDHASH),
        StorageType.HBM_DRAM_SSDHASH: (_HBM, _DRAM, _SSDHASH),
        StorageType.DRAM_PMEM_LEVELDB: (_DRAM, _PMEM, _LEVELDB),
        StorageType.HBM_DRAM_LEVELDB: (_HBM, _DRAM, _LEVELDB),
        StorageType.HBM_DRAM_PMEM: (_HBM, _DRAM, _PMEM),
        StorageType.HBM_DRAM_PMEM_LEVELDB: (_HBM, _DRAM, _PMEM, _LEVELDB),
        StorageType.HBM_DRAM_PMEM_SSDHASH: (_HBM, _DRAM, _PMEM, _SSDHASH),
    }
)

_EnumT = TypeVar("_EnumT", bound=enum.IntEnum)


class _Choice(Generic[_EnumT]):
    """A dataclass field of an enum type: it may be set to a member, its name or its number, and
    reads as the member.
    """

    def __init__(self, default: _EnumT) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, option: object | None, owner: type) -> _EnumT:
        if option is None:
            return self._default
        chosen: _EnumT = vars(option)[self._name]
        return chosen

    def __set__(self, option: object, value: int | str) -> None:
        vars(option)[self._name] = _member(type(self._default), self._name, value)


_ON_SSD = frozenset({_SSDHASH, _LEVELDB})
_NEEDS_PATH = _ON_SSD | {TierKind.PMEM_LIBPMEM}
_TAKES_PATH = _NEEDS_PATH | {_PMEM}


@dataclass(frozen=True)
class Tier:
    """One tier as the core takes it."""

    kind: TierKind
    path: str | None
    size_bytes: int | None  # None: unlimited
    is_default_size: bool = False  # storage_size doesn't set it


@dataclass(frozen=True)
class SSDHashOption:
    """Settings of the SSDHASH tier: how it reads its files, and whether they outlive the variable.

    direct_io: True: reads bypass the page cache (O_DIRECT). Raises StorageError if the file system
        has no direct I/O.
    io_scheme: an IoScheme or its name. Raises StorageError if this process can't use IO_URING.
        `stats()` tells what AUTO chose.
    keep_files: False: the files are removed when the variable is closed; files that a killed
        process left are removed when the next variable of that name is made there.
        True: close() makes a checkpoint of all rows in these files. The next variable of the same
        name, storage_path, dim, optimizer and partition_num begins with it: rows, slots,
        frequencies, versions, the optimizer's state, the learning rate and the default global_step.
        The counts of keys that wait at a filter begin anew, and keys without a row start by the
        next variable's own initializer; es.save() keeps both. The files may be larger than the
        tier's storage_size, and until the next close() the checkpoint's files take space beside the
        rows' own. After a kill or a power cut the variable continues from its last checkpoint.
    file_bytes: greatest size of a file, from 64 KiB to 1 TiB. Files are shorter while there are few
        rows, and have at most 1,048,575 rows. The space of removed rows is freed a file at a time.
    buffer_bytes: from 128 KiB to 1 GiB for each partition. Rows are gathered in memory, up to an
        eighth of buffer_bytes, before they are written to a file. The files take at most twice the
        size of the live rows, plus buffer_bytes.
    """

    direct_io: bool = False
    io_scheme: IoScheme | str = IoScheme.AUTO
    keep_files: bool = False
    file_bytes: int | str = 64 << 20
    buffer_bytes: int | str = 4 << 20

    def __post_init__(self) -> None:
        for name in ("direct_io", "keep_files"):
            _set(self, name, checks.flag(name, getattr(self, name)))
        for name, at_least, at_most in (
            ("file_bytes", 64 << 10, 1 << 40),
            ("buffer_bytes", 128 << 10, 1 << 30),
        ):
            value = checks.size(name, getattr(self, name), at_least=at_least, at_most=at_most)
            _set(self, name, value)
        try:
            _set(self, "io_scheme", IoScheme(self.io_scheme))
        except ValueError:
            known = ", ".join(repr(scheme.value) for scheme in IoScheme)
            raise InvalidArgumentError(
                f"io_scheme must be an embstore.IoScheme or one of {known}, got {self.io_scheme!r}"
            ) from None


@dataclass(frozen=True)
class StorageOption:
    """A storage type and, for its tiers, where they lie and how large they may become.

    storage_type, cache_strategy: a member, or its name in upper or lower case, as "dram_pmem".
    storage_path: a directory for all tiers that keep files, or a list with one entry per tier (a
        directory or None). A relative path starts from the working directory of the process when
        the variable is made. A directory that doesn't exist is made, its parents aren't. NODE_PMEM:
        the PMem of the shard's node (see `embstore.server`); for variables with shards.
    storage_size: bytes for each tier, first tier first, as numbers or as "512M" or "4G" (binary
        units). If the list is short or has None, a tier gets 1 GiB, with two exceptions: a last
        tier on SSD is unlimited, and if storage_path is NODE_PMEM, a tier of DRAM gets the
        --cache_size of the shard's node, if the node has one. A tier holds bytes // row_bytes rows,
        where row_bytes = (1 + optimizer slots) * round_up(4 * dim, 16). A tier of memory takes more
        bytes than that. PMem has a header beside each row: 16 bytes in an only tier, 48 bytes below
        another tier. Every tier but an only one has room for more rows, which are on their way
        down: an eighth of its capacity, but at least 256 and at most 16384 rows. A first tier in
        DRAM may grow by the rows of one batch.
    ssdhash_option: for a storage type with an SSDHASH tier; None: SSDHashOption().
    durability: "checkpoint": the rows of the PMem tier lie in a pool at storage_path that outlives
        the process, and `embstore.persist` makes checkpoints of them.
        The pool's file is then as large as that tier's storage_size. A row takes
        round_up(64 + row_bytes, 256) bytes of it, also a row in HBM or DRAM; a row that changed
        since a kept checkpoint takes them twice. A tier of SSDHASH below the pool takes part in
        its checkpoints: its files stay too, and a checkpoint's files take space beside the rows'
        own. DRAM_PMEM, DRAM_PMEM_SSDHASH and both of these below HBM support it; storage types with
        LEVELDB don't, since LevelDB merges its files by itself, and keeps none for a checkpoint.
        None: nothing outlives the variable.
    devices: a device or None for each tier, first tier first; a short list is filled with None.
        Work on a tier's rows then takes at least as long as it would on the tier's device: each
        call waits for the difference, and so do eviction and compaction threads. The times of every
        batch are then the device's, not this computer's. None: no waiting. See `embstore.devices`.
        Rows that would be in the device's CPU caches cost nothing. Rows in the page cache cost
        nothing either, so a tier of SSDHASH is as slow as its device only with direct_io.
    device: the GPU of a tier of HBM: "cuda", which is "cuda:0", "cuda:N", or "emulated", a GPU
        made of host memory, for tests. None: EMBSTORE_DEVICE in the environment of the process
        that has the rows, else "cuda".
    """

    storage_type: _Choice[StorageType] = _Choice(StorageType.DRAM)
    storage_path: Path | Sequence[Path | None] | None = None
    storage_size: Sequence[int | str | None] | None = None
    cache_strategy: _Choice[CacheStrategy] = _Choice(CacheStrategy.LFU)
    ssdhash_option: SSDHashOption | None = None
    durability: str | None = None
    devices: Sequence[Device | None] | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.device is not None:
            check_gpu("device", self.device)
            if not self.has_hbm:
                raise InvalidArgumentError(
                    f"device: {self.storage_type.name} has no tier of HBM "
                    f"({_names(TIER_KINDS[self.storage_type])})"
                )
        self._check_durability()
        self.tiers()  # raises if path and size don't fit the storage type
        self.tier_devices()
        if self.ssdhash_option is None:
            return
        _check_kind("ssdhash_option", self.ssdhash_option, SSDHashOption)
        if _SSDHASH not in TIER_KINDS[self.storage_type]:
            raise InvalidArgumentError(
                f"ssdhash_option: {self.storage_type.name} has no SSDHASH tier "
                f"({_names(TIER_KINDS[self.storage_type])})"
            )

    @property
    def has_hbm(self) -> bool:
        return _HBM in TIER_KINDS[self.storage_type]

    @property
    def keeps_rows(self) -> bool:
        """Whether closing the variable keeps its rows (`SSDHashOption.keep_files`)."""
        return self.ssdhash_option is not None and self.ssdhash_option.keep_files

    def tiers(self) -> tuple[Tier, ...]:
        """Returns the tiers, fastest first."""
        kinds = TIER_KINDS[self.storage_type]
        paths = _tier_paths(self.storage_type, kinds, self.storage_path)
        sizes = _tier_sizes(self.storage_type, kinds, self.storage_size)
        resolved = [
            TierKind.PMEM_POOL if kind is _PMEM and self.durability else _resolve(kind, path)
            for kind, path in zip(kinds, paths, strict=True)
        ]
        if TierKind.PMEM_POOL in resolved and paths[resolved.index(TierKind.PMEM_POOL)] is None:
            raise InvalidArgumentError(
                "storage_path is missing: durability keeps rows in a pool; give a directory on a "
                "dax mount"
            )
        given = tuple(self.storage_size or ())
        are_default = [i >= len(given) or given[i] is None for i in range(len(kinds))]
        return tuple(map(Tier, resolved, paths, sizes, are_default))

    def at_absolute_paths(self) -> StorageOption:
        """Returns a copy with absolute paths: relative ones start from the working directory.

        Raises StorageError if the process has no working directory any more.
        """
        path = self.storage_path
        if path is None or isinstance(path, (str, os.PathLike)):
            return replace(self, storage_path=_absolute(path))
        return replace(self, storage_path=[_absolute(entry) for entry in path])

    def tier_devices(self) -> tuple[Device | None, ...]:
        """Returns the device of each tier, or None."""
        kinds = TIER_KINDS[self.storage_type]
        devices = () if self.devices is None else self.devices
        if not isinstance(devices, Sequence) or isinstance(devices, (str, bytes)):
            raise InvalidArgumentError(
                f"devices must be a list of devices, or None, one a tier, got {devices!r}"
            )
        if len(devices) > len(kinds):
            raise InvalidArgumentError(
                f"devices has {len(devices)} entries, but {self.storage_type.name} has "
                f"{len(kinds)} tiers ({_names(kinds)})"
            )
        for i, (kind, device) in enumerate(zip(kinds, devices, strict=False)):
            if device is None:
                continue
            check_device(f"devices[{i}]", device)
            if kind not in _ON_SSD and not device.is_addressable:
                raise InvalidArgumentError(
                    f"devices[{i}]: {device.name} can't be loaded from and stored to, which a "
                    f"tier of {kind.value} is; give a memory, or None"
                )
        return (*devices, *[None] * (len(kinds) - len(devices)))

    def _check_durability(self) -> None:
        if self.durability is None:
            return
        if not isinstance(self.durability, str) or self.durability != "checkpoint":
            raise InvalidArgumentError(
                f'durability must be None or "checkpoint", got {self.durability!r}'
            )
        kinds = TIER_KINDS[self.storage_type]
        if _PMEM not in kinds:
            raise InvalidArgumentError(
                f"durability: {self.storage_type.name} has no tier of PMem below DRAM "
                f"({_names(kinds)}); DRAM_PMEM, DRAM_PMEM_SSDHASH and these below HBM have one"
            )
        if _LEVELDB in kinds:
            name = self.storage_type.name
            raise InvalidArgumentError(
                f"durability: {name} can't have it, since LevelDB merges its files by itself, and "
                f"keeps none for a checkpoint; use {name.replace('LEVELDB', 'SSDHASH')}. If an "
                "earlier version kept the table with LEVELDB, restore it with that version and "
                "es.save() it, then es.restore() the save here"
            )
        if self.ssdhash_option is not None and self.ssdhash_option.keep_files:
            raise InvalidArgumentError(
                "keep_files: durability keeps the SSDHASH tier's files as its checkpoints need "
                "them; leave keep_files out"
            )


@dataclass(frozen=True)
class InitializerOption:
    """Initial rows: key k starts as row k % default_value_dim (floor modulo) of one table.

    initializer: overrides the `initializer=` of `get_embedding_variable`. A class stands for the
        instance that it makes without arguments.
    default_value_no_permission: the value that a key reads while a filter keeps it out.
    """

    initializer: Initializer | type[Initializer] | None = None
    default_value_dim: int = 4096
    default_value_no_permission: float = 0.0

    def __post_init__(self) -> None:
        if self.initializer is not None:
            _set(self, "initializer", to_initializer(self.initializer))
        checks.integer("default_value_dim", self.default_value_dim, at_least=1, unit="rows")
        checks.real("default_value_no_permission", self.default_value_no_permission, float32=True)


@dataclass(frozen=True)
class CounterFilter:
    """Admits a key, which gives it a row, in the update in which it was seen often enough.

    filter_freq: occurrences that a key needs; 0 switches the filter off. Every waiting key takes 32
        to 64 bytes of memory.
    """

    filter_freq: int = 0

    def __post_init__(self) -> None:
        checks.integer("filter_freq", self.filter_freq, at_least=0, unit="occurrences")


@dataclass(frozen=True)
class CBFFilter:
    """Admits a key once it occurred `filter_freq` times, by the counts of a counting Bloom filter,
    whose memory does not grow with the keys.

    Counts may be too high, never too low. `get_version` returns -1 for a key that waits. An evicted
    row comes back with its key's next update.

    max_element_size: number of distinct keys in a partition that the filter is made for.
    false_positive_probability: probability that a key which never occurred counts as seen, once the
        filter has max_element_size keys. -1.0 (with max_element_size=0) switches the Bloom filter
        off: keys are counted one by one, as CounterFilter(filter_freq) does.
    counter_type: integer type of NumPy or TensorFlow, which sets the counters' width. Counters are
        unsigned and saturate. A key has about 1.44 * log2(1 / false_positive_probability) counters.
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: DTypeLike = np.uint64

    def __post_init__(self) -> None:
        checks.integer("filter_freq", self.filter_freq, at_least=0, unit="occurrences")
        probability = checks.real("false_positive_probability", self.false_positive_probability)
        if self.counts_exactly:
            checks.integer("max_element_size", self.max_element_size, at_least=0, unit="keys")
            if self.max_element_size != 0:
                raise InvalidArgumentError(
                    "max_element_size must be left at 0 where false_positive_probability is -1.0, "
                    f"which switches the Bloom filter off, got {self.max_element_size!r}; give a "
                    "false_positive_probability, for example 0.01"
                )
        else:
            checks.integer("max_element_size", self.max_element_size, at_least=1, unit="keys")
            checks.real("false_positive_probability", probability, above=0.0, below=1.0)
        if self.filter_freq >= 1 << self.counter_bits:
            raise InvalidArgumentError(
                f"filter_freq must be below {1 << self.counter_bits}, where counters of "
                f"{self.counter_bits} bits end, got {self.filter_freq}; take a larger counter_type"
            )

    @property
    def counts_exactly(self) -> bool:
        """Whether the Bloom filter is off, so that it works as a CounterFilter."""
        return self.false_positive_probability == _OFF

    @property
    def counter_bits(self) -> int:
        try:
            dtype: np.dtype[Any] = np.dtype(
                getattr(self.counter_type, "as_numpy_dtype", self.counter_type)
            )
        except (TypeError, ValueError):  # ValueError: lone surrogates, or a tensor
            dtype = np.dtype(object)
        if dtype.kind not in "ui":
            raise InvalidArgumentError(
                "counter_type must be an integer type of 8, 16, 32 or 64 bits, such as "
                f"numpy.uint16, got {self.counter_type!r}"
            )
        return dtype.itemsize * 8


@dataclass(frozen=True)
class GlobalStepEvict:
    """Drops, at a save, the rows whose last update is more than `steps_to_live` steps ago.

    Also drops a CounterFilter's counts of waiting keys that were last seen as long ago.

    steps_to_live: None: nothing is dropped.
    """

    steps_to_live: int | None = None

    def __post_init__(self) -> None:
        if self.steps_to_live is not None:
            checks.integer("steps_to_live", self.steps_to_live, at_least=1, unit="steps")


@dataclass(frozen=True)
class L2WeightEvict:
    """Drops, at a save, the rows whose ½·Σ weight² is below `l2_weight_threshold`.

    l2_weight_threshold: -1.0: no row is dropped.
    """

    l2_weight_threshold: float = -1.0

    def __post_init__(self) -> None:
        threshold = checks.real("l2_weight_threshold", self.l2_weight_threshold)
        if threshold != _OFF:
            checks.real("l2_weight_threshold", threshold, above=0.0)


@dataclass(frozen=True)
class EmbeddingVariableOption:
    """All options of a variable except its name, dim and optimizer.

    filter_option: decides which keys get a row; None: every key that is updated.
    evict_option: decides which rows saves, `embstore.persist` and `EmbeddingVariable.evict` drop;
        None: no rows.
    """

    storage_option: StorageOption = field(default_factory=StorageOption)
    init_option: InitializerOption = field(default_factory=InitializerOption)
    filter_option: CounterFilter | CBFFilter | None = None
    evict_option: GlobalStepEvict | L2WeightEvict | None = None

    def __post_init__(self) -> None:
        _check_kind("storage_option", self.storage_option, StorageOption)
        _check_kind("init_option", self.init_option, InitializerOption)
        if self.filter_option is not None:
            _check_kind("filter_option", self.filter_option, CounterFilter, CBFFilter)
        if self.evict_option is not None:
            _check_kind("evict_option", self.evict_option, GlobalStepEvict, L2WeightEvict)

    def eviction_limits(self, global_step: int) -> tuple[int | None, float | None]:
        """Returns the least version and the least ½·Σ weight² of rows that stay; None: no limit."""
        option = self.evict_option
        if isinstance(option, GlobalStepEvict) and option.steps_to_live is not None:
            return global_step - option.steps_to_live, None
        if isinstance(option, L2WeightEvict) and option.l2_weight_threshold != _OFF:
            return None, option.l2_weight_threshold
        return None, None


def _set(option: object, name: str, value: object) -> None:
    object.__setattr__(option, name, value)  # the dataclasses are frozen


def _check_kind(name: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        wanted = " or ".join(f"an embstore.{kind.__name__}" for kind in kinds)
        raise InvalidArgumentError(f"{name} must be {wanted}, got {type(value).__name__}")


def _member(kind: type[_EnumT], name: str, value: int | str) -> _EnumT:
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        known = ", ".join(member.name for member in kind)
        raise InvalidArgumentError(
            f"{name} must be an embstore.{kind.__name__} or its name ({known}), got {value!r}"
        ) from None


def _resolve(kind: TierKind, path: str | None) -> TierKind:
    if kind is not _PMEM:
        return kind
    return TierKind.PMEM_MEMKIND if path is None else TierKind.PMEM_LIBPMEM


def _tier_paths(
    storage_type: StorageType, kinds: Sequence[TierKind], storage_path: object
) -> tuple[str | None, ...]:
    if storage_path is None or isinstance(storage_path, (str, os.PathLike)):
        path = _path_text(storage_path)
        paths = tuple(path if kind in _TAKES_PATH else None for kind in kinds)
    elif isinstance(storage_path, Sequence) and not isinstance(storage_path, bytes):
        if len(storage_path) != len(kinds):
            raise InvalidArgumentError(
                f"storage_path must have one entry, or None, for each of the {len(kinds)} tiers of "
                f"{storage_type.name} ({_names(kinds)}), got {len(storage_path)}"
            )
        paths = tuple(map(_path_text, storage_path))
    else:
        raise InvalidArgumentError(
            f"storage_path must be a path or a list of paths, got {type(storage_path).__name__}"
        )
    for kind, path in zip(kinds, paths, strict=True):
        if path is None and kind in _NEEDS_PATH:
            raise InvalidArgumentError(
                f"storage_path is missing: the {kind.value} tier of {storage_type.name} keeps its "
                "rows in a file; give the directory to make it in"
            )
        if path is not None and kind not in _TAKES_PATH:
            raise InvalidArgumentError(
                f"storage_path: the {kind.value} tier of {storage_type.name} keeps no file; "
                f"put None in place of {path!r}"
            )
    return paths


def _path_text(path: object) -> str | None:
    if path is None:
        return None
    return checks.directory("storage_path", path)


def _absolute(path: Path | None) -> Path | None:
    return path if path is None or path == NODE_PMEM else checks.absolute("storage_path", path)


def _tier_sizes(
    storage_type: StorageType, kinds: Sequence[TierKind], storage_size: object
) -> tuple[int | None, ...]:
    if storage_size is None:
        storage_size = ()
    if not isinstance(storage_size, Sequence) or isinstance(storage_size, (str, bytes)):
        raise InvalidArgumentError(
            "storage_size must be a list of bytes or None for each tier, such as ['512M'], "
            f"got {storage_size!r}"
        )
    if len(storage_size) > len(kinds):
        raise InvalidArgumentError(
            f"storage_size has {len(storage_size)} entries, but {storage_type.name} has "
            f"{len(kinds)} tiers ({_names(kinds)})"
        )
    default = [
        None if i == len(kinds) - 1 and kind in _ON_SSD else DEFAULT_TIER_BYTES
        for i, kind in enumerate(kinds)
    ]
    given = [
        default[i] if size is None else checks.size(f"storage_size[{i}]", size)
        for i, size in enumerate(storage_size)
    ]
    return (*given, *default[len(given) :])


def _names(kinds: Sequence[TierKind]) -> str:
    return ", ".join(kind.value for kind in kinds)
