"""A shard, which holds one partition of a variable.

Everything goes in batches, and everything that goes in or out is a numpy array, a number, a string,
or a dataclass or mapping of such: so that a shard in another process can stand in for one here.
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
    """A tier of a shard. path: its file or directory; None where it has none."""

    kind: TierKind
    path: str | None
    size_bytes: int | None  # None: no limit


@dataclass(frozen=True)
class ShardSpec:
    """What a shard is made from."""

    name: str  # in messages, and of what its kept files are known by
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
    # What each tier takes as long as, or None. Fewer than tiers: None for the rest.
    devices: tuple[DeviceTable | None, ...] = ()
    partition_count: int = 1  # of the variable
    gpu: str | None = None  # of a tier of HBM; None without one
    evict_option: GlobalStepEvict | L2WeightEvict | None = (
        None  # whoever has the shard evicts by it
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
    """What a shard keeps once, rather than once a row."""

    apply_count: int
    beta1_power: float
    beta2_power: float
    learning_rate: float
    clock: int  # that of rows' recency


@dataclass(frozen=True)
class WrittenShard:
    """A file that a shard wrote, in a manifest's terms, and the shard as it is in it."""

    size: int
    checksum: int
    rows: int
    removed_keys: int
    waiting_keys: int
    sketches: int
    state: ShardState


@dataclass(frozen=True)
class SavedShard(WrittenShard):
    rows_left: int  # in the shard, whether saved now or before
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
    """A save of one partition, into a new file at `path`.

    At the save's moment rows of a lower version than least_version, or where half the sum of the
    weights' squares is less than least_half_square, are removed.
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
    """A checkpoint of one partition's pool. path: of a new file, for what isn't a row."""

    path: str
    checkpoint_id: bytes
    partition: int
    partition_count: int
    waiting_keys: bool


@dataclass(frozen=True)
class RestoreRequest:
    """What one partition is restored from.

    chain: for each save the paths of its files, verified; the newest save's first.
    """

    chain: list[list[str]]
    partition: int
    partition_count: int
    state: ShardState
    waiting_keys: bool

    def core(self) -> dict[str, Any]:
        """Arguments by name."""
        return {
            "chain": self.chain,
            "partition": self.partition,
            "partition_count": self.partition_count,
            "waiting_keys": self.waiting_keys,
            **asdict(self.state),
        }


class Shard:
    """What a variable asks of one shard; look-ups and updates concern several at a time
    (several_shards.py, elsewhere.py).

    A `RemoteShard` is asked for the same by the names of these methods, and has a `LocalShard`
    answer.

    ids: int64 of (n,), C-contiguous. Any thread may call any method. Errors are those of
    `embstore.errors`: ClosedError after close(), ForkedError in a process that was forked from the
    shard's own, and, from a shard that lies elsewhere, what tells that it can't be reached.
    """

    # The resource that the shard's node has and no other, where it is tied to one; else "".
    place = ""

    _table: _core.Table
    _pool_path: str | None  # of its durable pool

    def lookup_tier(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """(n,); -1 where there is no row."""
        return self._table.lookup_tier(ids)

    def frequency(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,); of waiting keys too; 0 for unknown ones."""
        return self._table.frequency(ids)

    def version(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,); of waiting keys too; -1 for unknown ones."""
        return self._table.version(ids)

    def size(self) -> int:
        """Rows."""
        return self._table.size()

    def keys(self, first: int, last: int) -> NDArray[np.int64]:
        """Those from first to last, both included, that have a row; (n,), ascending."""
        return self._table.keys(first, last)

    def export(
        self, skip_damaged: bool = False, keys: NDArray[np.int64] | None = None
    ) -> ShardRows:
        """DamagedRowsError where a row can't be read, unless those are to be left out.

        keys: (n,), ascending; those without a row are left out. None: all that have one.
        """
        return ShardRows(*self._table.export(skip_damaged, keys))

    def stats(self) -> dict[str, Any]:
        """As `EmbeddingVariable.stats`, of one partition."""
        return self._table.stats()

    def drain(self) -> None:
        """Returns when every tier is within its capacity and no row is being moved."""
        self._table.drain()

    def find_damaged(self) -> NDArray[np.int64]:
        """The keys of rows that a medium doesn't give back as they were written, ascending."""
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
        """Removes rows, damaged or not; an incremental save tells of it. Returns how many."""
        return self._table.drop(ids)

    def evict(self, least_version: int | None, least_half_square: float | None) -> int:
        """Removes rows of a lower version, or whose weights have a lower half square; as `drop`."""
        return self._table.evict(least_version, least_half_square)

    def apply_count(self) -> int:
        """The step that an apply without one of its own gets next."""
        return self._table.apply_count()

    def advance_apply_count(self, at_least: int) -> None:
        self._table.advance_apply_count(at_least)

    def learning_rate(self) -> float:
        """By which the next apply trains."""
        return self._table.learning_rate()

    def set_learning_rate(self, learning_rate: float) -> None:
        self._table.set_learning_rate(learning_rate)

    def sketch_shape(self) -> tuple[int, int, int] | None:
        """Counters, hashes and bits a counter of the filter's sketch; None where it has none."""
        return _core.sketch_shape(self._table)

    def save(self, request: SaveRequest, *, waiting_keys: bool, skip_damaged: bool) -> SavedShard:
        """Writes a new file of a checkpoint, which the medium has on return; see engine/FORMAT.md.

        The file has the shard at one moment between two batches; look-ups and updates go on while
        it is written.
        """
        with LocalSave(self._table, request) as save:
            save.begin(waiting_keys)
            return save.write(skip_damaged)

    def save_succeeded(self, number: int) -> None:
        """What save() wrote is safe: the next incremental save may leave it out."""
        _core.save_succeeded(self._table, number)

    def restore(self, request: RestoreRequest) -> None:
        """Replaces everything by what a chain of saves has for this partition. An empty chain
        leaves the shard empty, and so does an error.
        """
        _core.restore_table(self._table, **request.core())

    # --- Of a shard that keeps its files (`SSDHashOption.keep_files`)

    def kept_rows(self) -> list[bytes]:
        """Ids of the checkpoints that `keep_rows` made and the files still have, oldest first."""
        return _core.kept_rows(self._table)

    def take_over_kept_rows(self, checkpoint_id: bytes | None, keep_as: bytes) -> None:
        """Begins with the rows of that checkpoint; with no rows where it is None.

        keep_as: the id of the checkpoint that `keep_rows` makes, and close() where nobody called
            that; the same for all shards of a variable.
        """
        _core.take_over_kept_rows(self._table, checkpoint_id, keep_as)

    def keep_no_rows(self, checkpoint_id: bytes) -> None:
        """Makes a checkpoint of a shard that has no rows yet, which stays open."""
        _core.keep_no_rows(self._table, checkpoint_id)

    def keep_rows(self) -> None:
        """Makes a checkpoint of all rows, and keeps the one before it. No other call but close()
        and those of kept rows is taken afterwards, and a second call makes no other checkpoint."""
        _core.keep_rows(self._table)

    def drop_older_rows(self) -> None:
        """Drops all checkpoints but the one that `keep_rows` made."""
        _core.drop_older_rows(self._table)

    # --- Of a shard with a durable pool; the others raise InvalidArgumentError.

    def begin_persist(self, request: PersistRequest) -> BegunShard:
        """Every row as it is now belongs to the next checkpoint of the pool; the medium has the
        file on return.
        """
        begun = _core.begin_persist(self._table, **asdict(request))
        return BegunShard(state=_take_state(begun), **begun)

    def finish_persist(self, number: int, checkpoint_id: bytes) -> None:
        """Returns when all of it is durable. Look-ups and updates go on meanwhile."""
        _core.finish_persist(self._table, number, checkpoint_id)

    def drop_persisted(self, number: int) -> None:
        """Gives up a checkpoint, durable or not."""
        _core.drop_persisted(self._table, number)

    def persisted(self) -> list[PersistedShard]:
        """Those that are durable, oldest first."""
        return [PersistedShard(*found) for found in _core.persisted(self._table)]

    def should_persist(self) -> bool:
        """None is under way, and the first tier is full."""
        return _core.should_persist(self._table)

    def is_pool_short(self) -> bool:
        """None is under way, and half of the places that a pool above another tier keeps for rows
        that change between two checkpoints are used."""
        return _core.is_pool_short(self._table)

    def awaits_restore(self) -> bool:
        """The pool has checkpoints of an earlier process, neither restored nor discarded yet."""
        return _core.awaits_restore(self._table)

    def note_begun_at(self, directory: str) -> None:
        """Checkpoints of the shard's pool are begun there from now on; durable on return."""
        note_begun(self._pool(), directory)

    def note_listed_at(self, directory: str) -> None:
        """One of them is listed there, and counts; durable on return."""
        note_listed(self._pool(), directory)

    def begun_at(self) -> str | None:
        """What was noted last, by an earlier process too, if no checkpoint has counted yet."""
        return begun_at(self._pool())

    def await_restore(self) -> None:
        """Leaves the shard empty, and its checkpoints as they are. It takes no rows and makes no
        checkpoint until one is restored, or all are discarded.
        """
        _core.await_restore(self._table)

    def discard_persisted(self) -> None:
        """Gives those up."""
        _core.discard_persisted(self._table)
        forget_notes(self._pool())

    def restore_persisted(self, number: int, request: RestoreRequest) -> None:
        """Replaces everything by a checkpoint of the pool, and what the chain has beside its rows.
        Newer checkpoints stay. After an error the shard awaits its restore.
        """
        _core.restore_persisted(self._table, number=number, **request.core())

    def close(self) -> None:
        """Gives memory and files back; where rows are kept they are written out first, or it raises
        StorageError and may be called again. In a forked child it does nothing.
        """
        self._table.close()

    def _pool(self) -> str:
        assert self._pool_path is not None, "only variables with pools are asked"
        return self._pool_path


class LocalSave:
    """A save of a LocalShard, which ends with its scope; but not before a thread that writes it has
    done so, though a signal ends the scope of whoever waits for that thread.
    """

    def __init__(self, table: _core.Table, request: SaveRequest) -> None:
        """Looks for the rows that are to be removed."""
        self._save = _core.prepare_save(table, **asdict(request))
        self._in_use = threading.Lock()

    def begin(self, waiting_keys: bool) -> None:
        """Begins the save of the shard as it is now, without the rows that are to be removed."""
        self._save.begin(waiting_keys)

    def write(self, skip_damaged: bool) -> SavedShard:
        """Writes the file, which the medium has on return, while look-ups and updates go on."""
        with self._in_use:
            saved = self._save.write(skip_damaged)
        return SavedShard(state=_take_state(saved), **saved)

    def stop(self) -> None:
        """Has the thread that writes it raise StorageError soon."""
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
        self.gpu = gpu[0] or None  # of its tier of HBM
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
        """The rows of `ids`, (n, dim).

        train: an apply follows, which counts and promotes; so this doesn't.
        occurrences: (n,), how many ids each of `ids` stands for, where they were made unique; only
            with train, or without count.
        count: False for an evaluation, which no apply follows, and which neither counts nor
            promotes.
        """
        rows = np.empty((ids.size, self._dim), np.float32)
        self._table.lookup(ids, rows, train, occurrences, count)
        return rows

    def next_turn(self) -> int:
        """The turn of the batch that is trained after those which were asked for ahead.

        It and what follows: only of a shard with a tier of HBM.
        """
        return self._table.next_turn()

    def prefetch(self, ids: NDArray[np.int64], turn: int) -> None:
        """Has the rows of such a batch come up to HBM, and stay there until its turn is over."""
        self._table.prefetch(ids, turn)

    def forget_prefetched(self) -> None:
        """What was asked for ahead won't come."""
        self._table.forget_prefetched()

    def leave_out_apply(self) -> None:
        """Counts an apply whose batch is left out."""
        self._table.leave_out_apply()

    def synchronize(self) -> None:
        """Waits for what was put on streams, and raises what it met."""
        self._table.synchronize()

    # --- For batches of several shards: several_shards.py

    @property
    def table(self) -> _core.Table:
        return self._table

    def note_look_up(self, count: int) -> None:
        """So many ids were looked up."""

    def note_applied(self, count: int) -> None:
        """So many ids were trained."""

    def prepare_save(self, request: SaveRequest) -> LocalSave:
        """Looks for the rows that are to be removed, as for save(), while updates go on."""
        return LocalSave(self._table, request)

    def start_recording(self, recording: _core.Recording, number: int) -> None:
        """Phases are told to it, by this number, until it stops."""
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


def _take_state(told: dict[str, Any]) -> ShardState:
    return ShardState(**{field.name: told.pop(field.name) for field in fields(ShardState)})
