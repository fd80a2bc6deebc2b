"""A shard, which holds one partition of a variable.

All calls are in batches. Arguments and results are numpy arrays, numbers, strings, or dataclasses
and mappings of these, so that a shard in another process can replace a local one.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.checkpoint.persist.pool_note import begun_at, forget_notes, note_begun, note_listed
from embstore.devices.device_table import DeviceTable
from embstore.gpu.choice import gpu_to_open
from embstore.options import (
    CBFFilter,
    CounterFilter,
    GlobalStepEvict,
    IoScheme,
    L2WeightEvict,
    SSDHashOption,
    TierKind,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "BegunShard",
    "LocalSave",
    "LocalShard",
    "PersistRequest",
    "PersistedShard",
    "RestoreRequest",
    "SaveRequest",
    "SavedShard",
    "Shard",
    "ShardRows",
    "ShardSpec",
    "ShardState",
    "TierSpec",
    "WrittenShard",
]


@dataclass(frozen=True)
class TierSpec:
    """A tier of a shard. path: its file or directory, or None."""

    kind: TierKind
    path: str | None
    size_bytes: int | None  # None: no limit


@dataclass(frozen=True)
class ShardSpec:
    """The specification of a shard."""

    name: str  # for errors, and to identify kept files
    dim: int
    default_values: NDArray[np.float32]  # (n, dim); key k starts as row k mod n
    optimizer: str
    optimizer_params: dict[str, float]
    tiers: list[TierSpec]
    cache_strategy: str  # "LFU" or "LRU"
    filter: CounterFilter | CBFFilter | None
    no_permission_value: float
    ssdhash: SSDHashOption
    keeps_rows: bool  # closing the shard keeps its rows for the next process
    # The device that paces each tier, or None. A short tuple is filled with None.
    devices: tuple[DeviceTable | None, ...] = ()
    partition_count: int = 1  # of the variable
    gpu: str | None = None  # of a tier of HBM; None without such a tier
    evict_option: GlobalStepEvict | L2WeightEvict | None = (
        None  # used by the process that has the shard
    )


@dataclass(frozen=True)
class ShardRows:
    """Rows in ascending order of keys."""

    keys: NDArray[np.int64]  # (n,)
    values: NDArray[np.float32]  # (n, dim)
    frequencies: NDArray[np.int64]  # (n,)
    versions: NDArray[np.int64]  # (n,)
    slots: list[NDArray[np.float32]]  # of the optimizer, in its order; each (n, dim)


@dataclass(frozen=True)
class ShardState:
    """The state of a shard beside its rows."""

    apply_count: int
    beta1_power: float
    beta2_power: float
    learning_rate: float
    clock: int  # of the rows' recency


@dataclass(frozen=True)
class WrittenShard:
    """A file that a shard wrote, with its manifest entry and the shard's state at that moment."""

    size: int
    checksum: int
    rows: int
    removed_keys: int
    waiting_keys: int
    sketches: int
    state: ShardState


@dataclass(frozen=True)
class SavedShard(WrittenShard):
    """The result of saving a shard."""

    rows_left: int  # in the shard after eviction, saved now or before
    number: int  # for save_succeeded()
    skipped: NDArray[np.int64]  # keys of damaged rows, which are not in the file


@dataclass(frozen=True)
class BegunShard(WrittenShard):
    """A checkpoint that a shard's pool has begun, and its file."""

    number: int  # in the pool
    total_rows: int


@dataclass(frozen=True)
class PersistedShard:
    """A checkpoint that is durable in a shard's pool."""

    number: int
    checkpoint_id: bytes
    rows: int


@dataclass(frozen=True)
class SaveRequest:
    """A request to save one partition into a new file at `path`.

    At the moment of the save, rows are removed whose version is below least_version, or whose half
    sum of squared weights is below least_half_square.
    """

    path: str
    save_id: bytes
    partition: int
    partition_count: int
    incremental: bool
    least_version: int | None
    least_half_square: float | None


@dataclass(frozen=True)
class PersistRequest:
    """A request for a checkpoint of one partition's pool. path: a new file, for all but rows."""

    path: str
    checkpoint_id: bytes
    partition: int
    partition_count: int
    waiting_keys: bool


@dataclass(frozen=True)
class RestoreRequest:
    """A request to restore one partition.

    chain: for each save the paths of its files, which were verified; the newest save first.
    """

    chain: list[list[str]]
    partition: int
    partition_count: int
    state: ShardState
    waiting_keys: bool

    def core(self) -> dict[str, Any]:
        """Returns the core's arguments by name."""
        return {
            "chain": self.chain,
            "partition": self.partition,
            "partition_count": self.partition_count,
            "waiting_keys": self.waiting_keys,
            **asdict(self.state),
        }


class Shard:
    """The calls that a variable makes to a single shard. Look-ups and updates go to several shards
    at a time (several_shards.py, remote_shards.py).

    A `RemoteShard` forwards these methods, by their names, to a `LocalShard` in another process.

    ids: int64 (n,), C-contiguous. Any thread may call any method. Errors are those of
    `embstore.errors`: ClosedError after close(), ForkedError in a process that was forked from the
    shard's own, and ShardLostError if a remote shard can't be reached.
    """

    # The Ray resource that only the shard's node has, if the shard is tied to a node; else "".
    place = ""

    _table: _core.Table
    _pool_path: str | None  # of its durable pool

    def lookup_tier(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the tier of each row (n,); -1 for keys without a row."""
        return self._table.lookup_tier(ids)

    def frequency(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns frequencies (n,), of waiting keys too; 0 for unknown keys."""
        return self._table.frequency(ids)

    def version(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns versions (n,), of waiting keys too; -1 for unknown keys."""
        return self._table.version(ids)

    def size(self) -> int:
        """Returns the number of rows."""
        return self._table.size()

    def keys(self, first: int, last: int) -> NDArray[np.int64]:
        """Returns the keys from first to last, both included, that have a row; (n,), ascending."""
        return self._table.keys(first, last)

    def export(
        self, skip_damaged: bool = False, keys: NDArray[np.int64] | None = None
    ) -> ShardRows:
        """Returns rows. Raises DamagedRowsError if a row can't be read, unless skip_damaged.

        keys: (n,), ascending; keys without a row are left out. None: all keys with a row.
        """
        return ShardRows(*self._table.export(skip_damaged, keys))

    def stats(self) -> dict[str, Any]:
        """Returns the stats of one partition, as `EmbeddingVariable.stats` describes them."""
        return self._table.stats()

    def drain(self) -> None:
        """Returns when every tier is within its capacity and no row is being moved."""
        self._table.drain()

    def find_damaged(self) -> NDArray[np.int64]:
        """Returns the keys of damaged rows, ascending; see `EmbeddingVariable.damaged_keys`."""
        return self._table.find_damaged()

    def put(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        with_slots: bool,
        frequencies: NDArray[np.uint32],
        version: int,
    ) -> None:
        """Sets the rows of distinct ids: values (n, dim), or with slots (n, (1 + slots) * dim)."""
        self._table.put(ids, values, with_slots, frequencies, version)

    def drop(self, ids: NDArray[np.int64]) -> int:
        """Removes rows, damaged or not, and returns their number. The next incremental save records
        the removal.
        """
        return self._table.drop(ids)

    def evict(self, least_version: int | None, least_half_square: float | None) -> int:
        """Removes, as `drop` does, rows whose version, or whose half sum of squared weights, is
        lower.
        """
        return self._table.evict(least_version, least_half_square)

    def apply_count(self) -> int:
        """Returns the global step that the next apply without a global_step gets."""
        return self._table.apply_count()

    def advance_apply_count(self, at_least: int) -> None:
        self._table.advance_apply_count(at_least)

    def learning_rate(self) -> float:
        """Returns the learning rate of the next apply."""
        return self._table.learning_rate()

    def set_learning_rate(self, learning_rate: float) -> None:
        self._table.set_learning_rate(learning_rate)

    def sketch_shape(self) -> tuple[int, int, int] | None:
        """Returns (counters, hashes, bits per counter) of the filter's sketch; None without one."""
        return _core.sketch_shape(self._table)

    def save(self, request: SaveRequest, *, waiting_keys: bool, skip_damaged: bool) -> SavedShard:
        """Writes a new file of a checkpoint, which is durable on return; see engine/FORMAT.md.

        The file has the shard as of one moment between two batches. Look-ups and updates go on
        while it is written.
        """
        with LocalSave(self._table, request) as save:
            save.begin(waiting_keys)
            return save.write(skip_damaged)

    def save_succeeded(self, number: int) -> None:
        """Tells that the checkpoint of a save is complete: the next incremental save leaves its
        rows out.
        """
        _core.save_succeeded(self._table, number)

    def restore(self, request: RestoreRequest) -> None:
        """Replaces the shard's contents by those of a chain of saves. The shard is empty after an
        empty chain, and after an error.
        """
        _core.restore_table(self._table, **request.core())

    # --- For shards that keep their files (`SSDHashOption.keep_files`)

    def kept_rows(self) -> list[bytes]:
        """Returns the ids of the checkpoints of `keep_rows` that still exist, oldest first."""
        return _core.kept_rows(self._table)

    def take_over_kept_rows(self, checkpoint_id: bytes | None, keep_as: bytes) -> None:
        """Loads the rows of a checkpoint; None: starts with no rows.

        keep_as: the id of the checkpoint that `keep_rows` will make, or close() if `keep_rows` was
            not called; the same for all shards of a variable.
        """
        _core.take_over_kept_rows(self._table, checkpoint_id, keep_as)

    def keep_no_rows(self, checkpoint_id: bytes) -> None:
        """Makes a checkpoint of a shard that has no rows yet; the shard stays open."""
        _core.keep_no_rows(self._table, checkpoint_id)

    def keep_rows(self) -> None:
        """Makes a checkpoint of all rows, and keeps the older one. Afterwards only close() and the
        calls of this section may follow; a second call makes no other checkpoint."""
        _core.keep_rows(self._table)

    def drop_older_rows(self) -> None:
        """Drops all checkpoints but the one that `keep_rows` made."""
        _core.drop_older_rows(self._table)

    # --- For shards with a durable pool; other shards raise InvalidArgumentError.

    def begin_persist(self, request: PersistRequest) -> BegunShard:
        """Begins a checkpoint of the pool, which has every row as it is now. The request's file is
        durable on return.
        """
        begun = _core.begin_persist(self._table, **asdict(request))
        return BegunShard(state=_take_state(begun), **begun)

    def finish_persist(self, number: int, checkpoint_id: bytes) -> None:
        """Returns when the checkpoint is durable. Look-ups and updates go on meanwhile."""
        _core.finish_persist(self._table, number, checkpoint_id)

    def drop_persisted(self, number: int) -> None:
        """Drops a checkpoint, durable or not."""
        _core.drop_persisted(self._table, number)

    def persisted(self) -> list[PersistedShard]:
        """Returns the durable checkpoints, oldest first."""
        return [PersistedShard(*found) for found in _core.persisted(self._table)]

    def should_persist(self) -> bool:
        """Returns whether no checkpoint is pending and the tiers above the pool are full."""
        return _core.should_persist(self._table)

    def is_pool_short(self) -> bool:
        """Returns whether no checkpoint is pending, and a pool above another tier has used half of
        its places for rows that change between two checkpoints."""
        return _core.is_pool_short(self._table)

    def awaits_restore(self) -> bool:
        """Returns whether the pool has checkpoints of an earlier process that were neither restored
        nor discarded.
        """
        return _core.awaits_restore(self._table)

    def note_begun_at(self, directory: str) -> None:
        """Notes that checkpoints of the pool are begun in `directory` from now on; the note is
        durable on return.
        """
        note_begun(self._pool(), directory)

    def note_listed_at(self, directory: str) -> None:
        """Notes that a checkpoint is listed in `directory`, and so counts; the note is durable on
        return.
        """
        note_listed(self._pool(), directory)

    def begun_at(self) -> str | None:
        """Returns the directory noted last, also by an earlier process, if no checkpoint has
        counted yet; else None.
        """
        return begun_at(self._pool())

    def await_restore(self) -> None:
        """Empties the shard and leaves its checkpoints as they are. The shard takes no rows and
        makes no checkpoint until one is restored, or all are discarded.
        """
        _core.await_restore(self._table)

    def discard_persisted(self) -> None:
        """Discards the pool's checkpoints that await a restore."""
        _core.discard_persisted(self._table)
        forget_notes(self._pool())

    def restore_persisted(self, number: int, request: RestoreRequest) -> None:
        """Replaces the shard's contents by a checkpoint of the pool, and by all but the rows of the
        chain's files. Newer checkpoints stay. After an error the shard awaits its restore.
        """
        _core.restore_persisted(self._table, number=number, **request.core())

    def close(self) -> None:
        """Frees memory and files. If rows are kept, they are written first; if that fails, close()
        raises StorageError and may be called again. Does nothing in a forked child.
        """
        self._table.close()

    def _pool(self) -> str:
        assert self._pool_path is not None, "only variables with pools are asked"
        return self._pool_path


class LocalSave:
    """A save of a LocalShard, a context manager. Leaving it ends the save, but first waits for the
    thread that writes, even if a signal interrupts the thread that waits for the writing one.
    """

    def __init__(self, table: _core.Table, request: SaveRequest) -> None:
        """Finds the rows that the save will remove."""
        self._save = _core.prepare_save(table, **asdict(request))
        self._in_use = threading.Lock()

    def begin(self, waiting_keys: bool) -> None:
        """Removes those rows, and begins the save of the shard as it is then."""
        self._save.begin(waiting_keys)

    def write(self, skip_damaged: bool) -> SavedShard:
        """Writes the file, which is durable on return, while look-ups and updates go on."""
        with self._in_use:
            saved = self._save.write(skip_damaged)
        return SavedShard(state=_take_state(saved), **saved)

    def stop(self) -> None:
        """Makes write() raise StorageError soon in its thread."""
        self._save.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._in_use:
            self._save.abandon()


class LocalShard(Shard):
    """A shard in this process."""

    def __init__(self, spec: ShardSpec) -> None:
        gpu = gpu_to_open(spec.gpu) if spec.gpu else ("", "", "")
        self._table = _core.Table(
            name=spec.name,
            dim=spec.dim,
            default_values=spec.default_values,
            optimizer=spec.optimizer,
            optimizer_params=spec.optimizer_params,
            tiers=[(tier.kind.value, tier.path, tier.size_bytes) for tier in spec.tiers],
            cache_strategy=spec.cache_strategy,
            filter=_core_filter(spec.filter),
            no_permission_value=spec.no_permission_value,
            ssd_hash=_core_ssd_hash(spec.ssdhash),
            keeps_rows=spec.keeps_rows,
            devices=[None if device is None else device.core() for device in spec.devices],
            partition_count=spec.partition_count,
            gpu=gpu,
        )
        self.gpu = gpu[0] or None  # of the HBM tier
        self._dim = spec.dim
        pools = (tier.path for tier in spec.tiers if tier.kind is TierKind.PMEM_POOL)
        self._pool_path = next(pools, None)

    def lookup(
        self,
        ids: NDArray[np.int64],
        train: bool,
        occurrences: NDArray[np.uint32] | None = None,
        count: bool = True,
    ) -> NDArray[np.float32]:
        """Returns the rows of `ids`, (n, dim).

        train: True: an apply will follow, and counts and promotes, so the look-up doesn't.
        occurrences: (n,), how many ids of the batch each of the unique `ids` stands for; only with
            train, or without count.
        count: False for an evaluation, which no apply follows, and which neither counts nor
            promotes.
        """
        rows = np.empty((ids.size, self._dim), np.float32)
        self._table.lookup(ids, rows, train, occurrences, count)
        return rows

    def next_turn(self) -> int:
        """Returns the turn of the batch after those that were prefetched.

        This method and the next two need an HBM tier.
        """
        return self._table.next_turn()

    def prefetch(self, ids: NDArray[np.int64], turn: int) -> None:
        """Starts to move the rows of a batch up to HBM, where they stay until its turn is over."""
        self._table.prefetch(ids, turn)

    def forget_prefetched(self) -> None:
        """Forgets the batches that were prefetched: they won't be trained."""
        self._table.forget_prefetched()

    def count_skipped_apply(self) -> None:
        """Counts an apply whose batch is left out."""
        self._table.leave_out_apply()

    def synchronize(self) -> None:
        """Waits for the work on the GPU's streams, and raises the error that it met."""
        self._table.synchronize()

    # --- For batches of several shards, in several_shards.py

    @property
    def table(self) -> _core.Table:
        return self._table

    def note_look_up(self, count: int) -> None:
        """Called after `count` ids were looked up; subclasses count them."""

    def note_applied(self, count: int) -> None:
        """Called after `count` ids were trained; subclasses count them."""

    def prepare_save(self, request: SaveRequest) -> LocalSave:
        """Returns a save that was not begun; finds the rows to remove while updates go on."""
        return LocalSave(self._table, request)

    def start_recording(self, recording: _core.Recording, number: int) -> None:
        """Reports the shard's phases to `recording`, under `number`, until stop_recording()."""
        self._table.start_recording(recording, number)

    def stop_recording(self, recording: _core.Recording) -> None:
        self._table.stop_recording(recording)


def _core_filter(
    option: CounterFilter | CBFFilter | None,
) -> tuple[int, tuple[int, float, int] | None] | None:
    if option is None:
        return None
    if isinstance(option, CounterFilter) or option.counts_exactly:
        return option.filter_freq, None
    sketch = (option.max_element_size, option.false_positive_probability, option.counter_bits)
    return option.filter_freq, sketch


def _core_ssd_hash(option: SSDHashOption) -> tuple[bool, str, int, int]:
    return (
        option.direct_io,
        IoScheme(option.io_scheme).value,
        int(option.file_bytes),
        int(option.buffer_bytes),
    )


def _take_state(fields_by_name: dict[str, Any]) -> ShardState:
    return ShardState(
        **{field.name: fields_by_name.pop(field.name) for field in fields(ShardState)}
    )
