"""Embedding variables: tables of rows by int64 key, looked up and trained in batches."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.devices import Access
from embstore.errors import (
    EmbStoreError,
    InvalidArgumentError,
    ShardLostError,
    StorageError,
    UnsupportedError,
)
from embstore.gpu.batches import (
    IdsOnDevice,
    OnDevice,
    check_same_gpu,
    ids_on_host,
    is_on_device,
    to_host,
)
from embstore.gpu.choice import full_name
from embstore.gpu.steps import ApplyStep, LookUpStep, apply_together, look_up_together
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption
from embstore.table import checks
from embstore.table.closing_at_exit import close_at_exit
from embstore.table.guarded_lock import GuardedLock
from embstore.table.internals import VariableInternals, between_batches
from embstore.table.remote_shards import (
    RemoteLookup,
    UniqueKeys,
    UpdatePart,
    push_together,
    send_lookups,
    slices_of_one_array,
)
from embstore.table.several_shards import apply_to_all
from embstore.table.shard import LocalShard, Shard, ShardRows

if TYPE_CHECKING:
    from typing_extensions import Self

    from embstore.cluster.rows.remote_shard import RemoteShard

__all__ = ["EmbeddingVariable"]

OnDamage: TypeAlias = Literal["raise", "skip"]

_ScalarT = TypeVar("_ScalarT", bound=np.generic)

# The id of the empty checkpoint that a partition makes at its start if it keeps its files.
_NO_ROWS = bytes(16)

_NO_IDS = np.empty(0, np.int64)

ROWS_PER_CHUNK = 1 << 16


class EmbeddingVariable:
    """A table of rows of `dim` float32 values by int64 key; every int64 is a legal key.

    ids: int64, of any shape; shorter integers and lists of ints are converted.
    Every method may be called from any thread. Use the variable as a context manager, or call
    `close()`, to free its memory and files; a variable that is open when the program ends is closed
    then. `get_embedding_variable` makes variables.

    A variable belongs to the process that made it. In a forked child its methods raise ForkedError,
    except close(), which does nothing there, so that a child may leave a `with` block. Open the
    variable in the worker instead, or start workers by spawn.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: Optimizer | None,
        ev_option: EmbeddingVariableOption,
        shards: Sequence[Shard],
    ) -> None:
        """Takes over `shards`, one for each partition: close() closes them."""
        self._name = name
        self._dim = dim
        self._optimizer = optimizer
        self._option = ev_option
        self.internals = VariableInternals(name, optimizer, shards)  # for embstore alone
        self._shards = self.internals.shards
        # Replaces batch_lock as the push lock of a single remote shard; saves don't take it.
        self._single_shard_lock = GuardedLock(name)
        self._table = self.internals.table
        # All shards, if they lie in other processes; else empty.
        self._remote_shards = cast(
            "list[RemoteShard]", list(shards) if self.internals.is_remote else []
        )
        # The ids of the last look-up for training at remote shards, which the next update takes:
        # mostly its ids are the same, so it needs no UniqueKeys of its own.
        self._last_training_lookup: tuple[NDArray[np.int64], UniqueKeys | None] = _NO_IDS, None
        self._has_closed_shards = False
        # Held by the thread that closes the variable, while other closing threads wait. Reentrant,
        # since a signal handler may call close() again in that thread.
        self._closing = threading.RLock()
        if ev_option.storage_option.keeps_rows:
            _take_over_kept_rows(name, self._shards)
        close_at_exit(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def dim(self) -> int:
        """The number of values in a row."""
        return self._dim

    @property
    def optimizer(self) -> Optimizer | None:
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next `apply_gradients`; the optimizer's own until it is set.

        It may be set at any time and from any thread; an apply that has begun keeps the old rate.
        Saves and kept files (`SSDHashOption.keep_files`) hold the rate, and a restore brings it
        back. Raises InvalidArgumentError if the variable has no optimizer, or if the optimizer
        can't work with the value.
        """
        self.internals.check_trainable()
        return self._shards[0].learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        rate = self.internals.check_trainable().check_learning_rate(value)
        self.internals.refuse_if_forked()
        with self.internals.batch_lock:  # so that no batch trains some of its keys by the old rate
            self.internals.rate_changes += 1
            for shard in self._shards:
                shard.set_learning_rate(rate)

    @property
    def ev_option(self) -> EmbeddingVariableOption:
        return self._option

    @property
    def partition_num(self) -> int:
        return len(self._shards)

    @overload
    def lookup(
        self,
        ids: checks.Ids,
        *,
        train: bool = False,
        count: bool = True,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    def lookup(
        self, ids: OnDevice, *, train: bool = False, count: bool = True, out: Any = None
    ) -> Any: ...
    def lookup(
        self,
        ids: checks.Ids | OnDevice,
        *,
        train: bool = False,
        count: bool = True,
        out: Any = None,
    ) -> Any:
        """Returns the rows of `ids`, float32 of ids.shape + (dim,). An unknown key reads its
        initial row; no look-up inserts rows.

        train: True: `apply_gradients` will follow, and counts and promotes the rows, so the look-up
            doesn't. False: a look-up for serving, which counts and promotes by itself.
        count: False for an evaluation between steps of training: rows keep their ranks and tiers.
            (`stats()` counts its hits and misses like those of any look-up.)
        out: C-contiguous float32 array of that shape to write into and return, instead of a new
            array.

        ids on a GPU: an array that supports DLPack, such as a PyTorch CUDA tensor or a
        `DeviceArray`, for a variable with a tier of HBM on that GPU. The rows are returned there
        too, as a tensor or a DeviceArray. The look-up is put on PyTorch's current stream (else on
        the default stream) and waits for nothing: rows in HBM don't pass through the host. Rows
        that can't be read are NaN; the next look-up, apply, save, `drain()`, `synchronize()` or
        `close()` raises the error. During a save, look-ups pass through the host.
        """
        if type(train) is not bool or type(count) is not bool:  # NumPy's, mostly
            train, count = checks.flag("train", train), checks.flag("count", count)
        if type(ids) is not np.ndarray and is_on_device(ids):
            look_up = LookUpStep.of(self, ids, out)
            look_up_together([look_up], train, count)
            return look_up.out
        keys = checks.ids(ids)
        shape = (*keys.shape, self._dim)
        if out is None:
            out = np.empty(shape, checks.FLOAT32)
        else:
            checks.out(out, shape, keys if self._table is None else None)
        rows = out
        if keys.ndim != 1:
            keys, rows = keys.reshape(-1), out.reshape(-1, self._dim)
        if self._table is not None:
            self._table.lookup(keys, rows, train, None, count)
        elif self._remote_shards:
            self._remote_lookup(keys, train, count).write_to(rows)
        else:
            for shard, where in self._routed(keys):
                here = cast("LocalShard", shard)
                rows[where] = here.lookup(keys[where], train, count=count)
        return out

    def _remote_lookup(
        self, keys: NDArray[np.int64], train: bool, count: bool = True
    ) -> RemoteLookup:
        """Returns a look-up at remote shards: the prefetched one, or a new one that is not sent
        yet.
        """
        self.internals.refuse_if_forked()
        prefetched = self.internals.prefetched.take(keys) if train else None
        unique = None if prefetched is None else prefetched.unique
        if unique is None and (train or not count):
            unique = UniqueKeys(keys, len(self._remote_shards))
        if train:
            self._last_training_lookup = keys.copy(), unique
        return prefetched or RemoteLookup(self._remote_shards, self._dim, keys, unique)

    @property
    def gpu(self) -> str | None:
        """The GPU of the partitions' HBM tiers, "cuda:N" or "emulated"; ids may lie in its memory.
        None if not every partition has such a tier in this process.
        """
        shards = self.internals.shards_with_hbm()
        return full_name(shards[0].gpu) if shards and shards[0].gpu else None

    def synchronize(self) -> None:
        """Returns when the work on the GPU's streams is done; raises the error that it met."""
        for shard in self._shards:
            if isinstance(shard, LocalShard):
                shard.synchronize()

    def prefetch(self, *batch: checks.Ids | OnDevice) -> None:
        """Starts to fetch the rows of a batch, while earlier batches are trained.

        batch: the ids of each look-up for training that one `apply_gradients` will follow. Call
            this once for each batch, in the order in which batches will be trained. Ids may be on a
            GPU, as in `lookup()`: the host reads them when their stream gets there, and the caller
            does not wait.

        Look-ups and training return the same bits with a prefetch as without. A loop over batches
        can use `embstore.prefetching`. Three cases:

        - With `shards`, the servers read the rows once the earlier batches are trained, and send
          them. A look-up of other ids, or one that comes sooner, reads its own rows. Rows that
          another worker puts or removes meanwhile may be missed.
        - With a tier of HBM in this process, rows of lower tiers move up to HBM in the background,
          as many as fit beside those of the batches before. They stay there until their batch's
          `apply_gradients`, or until 16 more batches were prefetched. Ids without a row get no row,
          and nothing is counted.
        - All other variables have their rows in this process already: the call does nothing.
        """
        if self.internals.is_remote:
            send_lookups(self._add_prefetched(batch))
        else:
            self._prefetch_to_hbm(batch)

    def _add_prefetched(self, batch: Sequence[checks.Ids | OnDevice]) -> list[RemoteLookup]:
        """Returns the look-ups of a prefetched batch at remote shards; the caller sends them."""
        arrays = [ids_on_host(ids).reshape(-1) for ids in batch]
        self.internals.refuse_if_forked()
        added: list[RemoteLookup] = []

        def begin(ids: NDArray[np.int64], ahead: int) -> RemoteLookup:
            unique = UniqueKeys(ids, len(self._remote_shards))
            added.append(RemoteLookup(self._remote_shards, self._dim, ids, unique, ahead=ahead))
            return added[-1]

        self.internals.prefetched.add(arrays, begin)
        return added

    def _prefetch_to_hbm(self, batch: Sequence[checks.Ids | OnDevice]) -> None:
        gpu = self.gpu
        local_ids: list[NDArray[np.int64]] = []
        gpu_ids: list[IdsOnDevice] = []
        for ids in batch:
            if gpu is not None and is_on_device(ids):
                gpu_ids.append(IdsOnDevice.of(ids))
                check_same_gpu(self._name, gpu_ids[-1], gpu)
            else:
                local_ids.append(ids_on_host(ids).reshape(-1))
        shards = self.internals.shards_with_hbm()
        if not shards:
            return
        turns = [shard.next_turn() for shard in shards]
        keys = np.concatenate(local_ids) if local_ids else np.empty(0, np.int64)
        self.internals.refuse_if_forked()
        parts = [keys]
        if len(shards) > 1:
            parts = [keys[where] for _, where in self._routed(keys)]
        for shard, turn, part in zip(shards, turns, parts, strict=True):
            shard.prefetch(part, turn)
        for on_device in gpu_ids:
            _core.prefetch_on_device(
                [shard.table for shard in shards],
                on_device.address,
                prod(on_device.shape),
                on_device.stream,
                turns,
            )

    def apply_gradients(
        self,
        ids: checks.Ids | OnDevice,
        grads: checks.Rows | OnDevice,
        global_step: int | None = None,
    ) -> None:
        """Trains the rows of `ids` with one optimizer step, and inserts rows for new keys.

        grads: float32 of ids.shape + (dim,); the gradients of equal ids are summed, in order.
        global_step: becomes the rows' version; by default the number of applies so far, from 0.

        ids and grads may both be on a GPU, as in `lookup()`: the update is put on the same stream
        and waits for nothing. The next look-up, apply, save, `drain()`, `synchronize()` or
        `close()` raises its error; the failed update counts as an apply. For a variable without
        HBM, and during a save, both arrays are copied to the host.

        The batch is applied whole or not at all: an error leaves every row as it was. Raises
        InvalidArgumentError if a gradient is NaN or infinite, StoreFullError if there is no room
        for the new rows, and DamagedRowsError or StorageError if rows can't be read, or no room can
        be made for them.
        """
        if self._optimizer is None:
            self.internals.check_trainable()
        if global_step is not None:
            global_step = checks.integer("global_step", global_step, at_least=0)
        if (
            type(ids) is not np.ndarray
            and is_on_device(ids)
            and is_on_device(grads)
            and self.gpu is not None
        ):
            apply_together([ApplyStep.of(self, ids, grads)], global_step)
            return
        if self._table is not None:
            keys, values = self._arrays_on_host(ids, grads)
            first = self._table.apply_if_finite(keys, values, global_step)
            if first is not None:
                raise checks.not_finite(keys, values, first)
            return
        keys, values = self._batch_on_host(ids, grads)
        if self._remote_shards:
            for _, error in push_to_remote_shards([(self, keys, values)], global_step):
                raise error
            return
        # Every shard gets a batch, even if it is empty, because each shard counts the applies.
        batch = [
            (cast("LocalShard", shard), keys[where], values[where])
            for shard, where in self._routed(keys)
        ]
        with self.internals.batch_lock:
            apply_to_all(batch, global_step)
        _core.pay_pacing_debt()  # once the lock is free, so that no other thread waits for it

    def _batch_on_host(
        self, ids: checks.Ids | OnDevice, grads: checks.Rows | OnDevice
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns keys (n,) and gradients (n, dim), which were checked to be finite."""
        self.internals.refuse_if_forked()  # first, since a call of the core could wait for ever
        keys, values = self._arrays_on_host(ids, grads)
        checks.finite_gradients(keys, values)
        return keys, values

    def _arrays_on_host(
        self, ids: checks.Ids | OnDevice, grads: checks.Rows | OnDevice
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns keys (n,) and gradients (n, dim)."""
        keys = checks.ids(ids) if type(ids) is np.ndarray else ids_on_host(ids)
        if type(grads) is not np.ndarray and is_on_device(grads):
            grads = to_host("grads", grads)
        values = checks.rows("grads", grads, (*keys.shape, self._dim))
        if keys.ndim == 1:
            return keys, values
        return keys.reshape(-1), values.reshape(-1, self._dim)

    def _push_scope(self) -> contextlib.AbstractContextManager[None]:
        """Returns the scope in which a batch is pushed to remote shards."""
        self.internals.refuse_if_forked()
        return self.internals.prefetched.push()

    @property
    def _push_lock(self) -> GuardedLock:
        """The lock that is held from when a push to remote shards gets its number to its end."""
        return self.internals.batch_lock if len(self._shards) > 1 else self._single_shard_lock

    def _unique_keys(self, keys: NDArray[np.int64]) -> UniqueKeys:
        """Returns the unique keys of a batch that is pushed to remote shards."""
        (looked_up, unique), self._last_training_lookup = (
            self._last_training_lookup,
            (_NO_IDS, None),
        )
        if unique is None or not np.array_equal(looked_up, keys):
            unique = UniqueKeys(keys, len(self._remote_shards))
        return unique

    def _push_error(self, unique: UniqueKeys) -> EmbStoreError | None:
        """Returns the error that a push to remote shards meets before it is sent, or None."""
        try:
            for shard, (begin, end) in zip(
                self._remote_shards, pairwise(unique.begins), strict=True
            ):
                shard.check_can_send(end - begin)
        except EmbStoreError as error:
            return error
        return None

    def _update_parts(self, unique: UniqueKeys, sums: NDArray[np.float32]) -> list[UpdatePart]:
        """Returns the parts of a push to remote shards: each key goes to its shard once, with
        the sum of its gradients. Every shard gets a part, even if it is empty, because each shard
        counts the applies.
        """
        return [
            UpdatePart(
                shard,
                shard.begin_push(),
                unique.keys[begin:end],
                sums[begin:end],
                unique.occurrences[begin:end],
            )
            for shard, (begin, end) in zip(
                self._remote_shards, pairwise(unique.begins), strict=True
            )
        ]

    def lookup_tier(self, ids: checks.Ids) -> NDArray[np.int32]:
        """Returns the tier of each row, from 0, or -1 for keys without a row; of ids.shape."""
        return self._gather(ids, lambda shard, keys: shard.lookup_tier(keys), np.int32)

    def get_frequency(self, ids: checks.Ids) -> NDArray[np.int64]:
        """Returns how often each key occurred in applies; 0 for unknown keys; of ids.shape."""
        return self._gather(ids, lambda shard, keys: shard.frequency(keys), np.int64)

    def get_version(self, ids: checks.Ids) -> NDArray[np.int64]:
        """Returns the global step of each key's last apply; -1 for unknown keys; of ids.shape."""
        return self._gather(ids, lambda shard, keys: shard.version(keys), np.int64)

    def total_count(self) -> tuple[int, int]:
        """Returns (rows, dim)."""
        return sum(shard.size() for shard in self._shards), self._dim

    def export(self, *, on_damage: OnDamage = "raise") -> dict[str, NDArray[Any]]:
        """Returns every row as of one moment between two batches, in ascending order of keys.

        The dict has keys int64 (n,), values float32 (n, dim), freqs int64 (n,), versions int64
        (n,), and one float32 array (n, dim) for each of the optimizer's slots, by its name.

        Partitions in other processes (`shards=`) have all had the same batches of this process.
        Batches of other workers may come in between: then each partition is as of a moment of its
        own.

        on_damage: "raise": damaged rows raise DamagedRowsError, which has their `keys`; "skip":
            they are left out.
        """
        skip = checks.choice("on_damage", on_damage, ("raise", "skip")) == "skip"
        with self._between_batches():
            parts = [shard.export(skip) for shard in self._shards]
        return self._exported(parts)

    def export_in_chunks(
        self,
        rows: int = ROWS_PER_CHUNK,
        *,
        first_key: int = checks.INT64_MIN,
        last_key: int = checks.INT64_MAX,
        on_damage: OnDamage = "raise",
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields the rows of keys from first_key to last_key, both included, in ascending order of
        keys, in chunks of at most `rows` rows, each as `export()` returns them.

        One chunk is in memory at a time, and the keys of the range: 8 bytes each, 16 while they are
        looked up. The keys are looked up at the first chunk. A chunk has its rows as of the moment
        when it is asked for; rows that were removed meanwhile are left out. So if the table is
        trained meanwhile, chunks are of different moments; `embstore.save` writes one moment.
        """
        max_rows = checks.integer("rows", rows, at_least=1)
        first = checks.integer("first_key", first_key, at_least=checks.INT64_MIN)
        last = checks.integer("last_key", last_key, at_least=checks.INT64_MIN)
        skip = checks.choice("on_damage", on_damage, ("raise", "skip")) == "skip"
        return self._chunks(max_rows, first, last, skip)

    def _chunks(
        self, max_rows: int, first: int, last: int, skip: bool
    ) -> Iterator[dict[str, NDArray[Any]]]:
        with self._between_batches():
            shard_keys = [shard.keys(first, last) for shard in self._shards]
        keys = shard_keys[0]
        if len(shard_keys) > 1:
            keys = np.concatenate(shard_keys)
            keys.sort()
        del shard_keys
        for begin in range(0, keys.size, max_rows):
            # Keeps no reference, so that no old chunk stays in memory beside the next one.
            yield self._chunk(keys[begin : begin + max_rows], skip)

    def _chunk(self, keys: NDArray[np.int64], skip: bool) -> dict[str, NDArray[Any]]:
        with self._between_batches():
            parts = [shard.export(skip, keys[where]) for shard, where in self._routed(keys)]
        return self._exported(parts)

    def _between_batches(self) -> contextlib.AbstractContextManager[None]:
        """Returns the scope in which all partitions have had the same batches of this process. A
        single partition needs no lock for that.
        """
        return between_batches([self]) if len(self._shards) > 1 else contextlib.nullcontext()

    def _exported(self, parts: Sequence[ShardRows]) -> dict[str, NDArray[Any]]:
        """Returns the rows of all shards as `export()` does. parts: each shard's, by keys."""
        slots = self._optimizer.slots if self._optimizer is not None else ()
        names = ("keys", "values", "freqs", "versions", *slots)
        shard_columns = [_columns(part) for part in parts]
        columns = shard_columns[0]
        if len(shard_columns) > 1:
            order = np.argsort(
                np.concatenate([columns_of_shard[0] for columns_of_shard in shard_columns])
            )
            columns = [np.concatenate(column)[order] for column in zip(*shard_columns, strict=True)]
        return dict(zip(names, columns, strict=True))

    def damaged_keys(self) -> NDArray[np.int64]:
        """Returns the keys of damaged rows, of which a medium returns other bytes than were
        written; int64 (n,), ascending.

        Reads every row. Look-ups, applies, saves and exports of a damaged row raise
        DamagedRowsError until the medium returns the right bytes, `drop_damaged()` removes the row,
        or a restore replaces it. All other rows are usable.
        """
        return np.sort(np.concatenate([shard.find_damaged() for shard in self._shards]))

    def drop_damaged(self) -> NDArray[np.int64]:
        """Removes damaged rows, so that their keys start anew; returns the keys, int64 (n,),
        ascending. Batches go on while the rows are read; saves, restores and other changes of rows
        wait.
        """
        self.internals.refuse_if_forked()
        dropped = []
        self.internals.prefetched.forget()
        with self.internals.checkpointing:  # so that nothing replaces a row that was found damaged
            for shard in self._shards:
                dropped.append(shard.find_damaged())
                with self.internals.batch_lock:
                    shard.drop(dropped[-1])
        return np.sort(np.concatenate(dropped))

    def put(
        self,
        ids: checks.Ids,
        values: checks.Rows,
        *,
        slots: Mapping[str, checks.Rows] | None = None,
        freqs: checks.Ids | None = None,
        version: int = 0,
    ) -> None:
        """Sets rows to given values, such as those of another program, and inserts new rows
        whatever a filter says.

        ids: int64 of any shape, each id once.
        values: the weights, float32 of ids.shape + (dim,).
        slots: all slots of the optimizer by name, as `export()` returns them; each float32 of
            ids.shape + (dim,). None: rows keep their slots, and new rows get initial slots.
        freqs: number of occurrences of each id, of ids.shape, from 1 to 2**32 - 1; added to the
            rows' frequencies. None: 1 each.
        version: global step that the rows get as their version.

        Each partition takes its rows whole or not at all. The number of applies stays. Raises as
        `apply_gradients` does, but values are taken as they are: inf and nan, too.
        """
        keys = checks.ids(ids)
        shape = (*keys.shape, self._dim)
        columns = [checks.rows("values", values, shape)]
        if slots is not None:
            names = self.internals.check_trainable().slots
            if not isinstance(slots, Mapping):
                raise InvalidArgumentError(
                    "slots must be a dict of arrays by the slots' names, as export() returns them, "
                    f"got {type(slots).__name__}"
                )
            if set(slots) != set(names):
                got = ", ".join(map(str, slots))
                raise InvalidArgumentError(
                    f"slots must have {', '.join(names) or 'nothing'}, got {got or 'nothing'}"
                )
            columns += [checks.rows(f"slots[{name!r}]", slots[name], shape) for name in names]
        if freqs is None:
            counts = np.ones(keys.size, np.uint32)
        else:
            counts = checks.counts("freqs", freqs, keys.shape).reshape(-1)
        step = checks.integer("version", version, at_least=0)
        keys = keys.reshape(-1)
        checks.distinct("ids", keys)
        rows = np.concatenate([column.reshape(-1, self._dim) for column in columns], axis=1)
        self.internals.refuse_if_forked()
        self.internals.prefetched.forget()
        with self.internals.checkpointing, self.internals.batch_lock:
            for shard, where in self._routed(keys):
                shard.put(keys[where], rows[where], slots is not None, counts[where], step)

    def remove(self, ids: checks.Ids) -> int:
        """Removes the rows of `ids`, whichever tier they are in; returns how many there were.

        Their keys start anew; the next incremental save records the removal. A key that waits at
        its filter goes on waiting.
        """
        keys = checks.ids(ids).reshape(-1)
        self.internals.refuse_if_forked()
        self.internals.prefetched.forget()
        with self.internals.checkpointing, self.internals.batch_lock:
            if len(self._shards) == 1:
                return self._shards[0].drop(keys)
            return sum(shard.drop(keys[where]) for shard, where in self._routed(keys))

    def evict(self, global_step: int) -> int:
        """Removes the rows that `evict_option` selects, in every tier; returns their number, 0
        without an evict_option.

        Saves and `embstore.persist` evict too. Batches go on while the rows are searched; each
        partition then removes its rows between two batches.

        global_step: the step that GlobalStepEvict subtracts versions from.
        """
        step = checks.integer("global_step", global_step, at_least=0)
        self.internals.refuse_if_forked()
        with self.internals.checkpointing:
            self.total_count()  # raises if the variable is closed, even if nothing is to be evicted
            return self.internals.evict(*self._option.eviction_limits(step))

    def drain(self) -> None:
        """Returns when every tier is within its capacity and no row is being moved."""
        for shard in self._shards:
            shard.drain()

    def stats(self) -> dict[str, Any]:
        """Returns counters since the variable was made, and facts about the tiers.

        hits: ids looked up, duplicates too, whose row was in the first tier.
        misses: all other ids looked up: their row was in a lower tier, or they have none. Look-ups
            for serving and for training count hits and misses; applies and other readers of rows
            don't. hits / (hits + misses) is the first tier's hit rate.
        without_row: misses that had no row in any tier: new keys, and keys that a filter keeps out.
            The rows of all other misses were in a lower tier.
        promotions and demotions: moves of rows up, by one or more tiers, and down by one tier.
        forgotten_accesses: ids looked up for serving that were never counted for the cache's
            ranking, because a save or a failing medium held moves off for too long.
        background_error: the error of the last attempt to move rows; "" if it succeeded. Nothing is
            lost by it, and the move is tried again.
        waiting_keys: keys that were counted and are below their filter's threshold.
        filter_bytes: memory of the filter's counts.
        index_bytes: memory of the index, which finds rows by key.
        tiers: a list of one dict for each tier: name, rows, capacity_rows, bytes (of its rows),
            row_bytes, address (of the first row; 0 if none), mapped_bytes, path, is_pmem (None if
            it can't be determined), io_scheme (how an SSDHASH tier reads rows that aren't in the
            page cache: "io_uring" or "pread"; None for other tiers), gpu (the name of an HBM tier's
            GPU, or "emulated"; else None), is_pinned (for DRAM below HBM, whether the GPU reads
            rows in place; False if the system refuses, or has too little memory to spare; else
            None), accesses, device (the name of the device that paces the tier, from
            `StorageOption.devices`; else None).
        tiers[i]["accesses"]: how the tier's rows were touched, a list of one dict for each access
            (an `embstore.Access`) and number of threads: access, threads, accesses (contiguous
            pieces that were touched, or calls for files), bytes (of those pieces), elapsed_ns
            (summed over threads, with the engine's own work on those rows). threads: how many
            threads of this process used the tier's medium, DRAM or the storage_path, at that time,
            from 1 to 64; 64 stands for more, too. A look-up loads the weights of rows in the first
            tier. An update stores new rows and updates whole rows of the batch; a row that moves is
            loaded and stored. A header beside a row in the same memory is a piece of its own. The
            index, ranks and everything else that always lies in DRAM isn't counted, nor are rows
            that the page cache returns without a call. LevelDB's own files can't be observed from
            outside: counted are the records requested from it and the batches that it wrote to its
            log; it also reads whole blocks, and compacts.

        With partitions, counters are sums. The list has the tiers of one partition after the other,
        each with its partition's number as "partition".
        """
        parts = [_with_access_names(shard.stats()) for shard in self._shards]
        if len(parts) == 1:
            return parts[0]
        not_summed = ("background_error", "tiers")
        counters = {
            name: sum(part[name] for part in parts) for name in parts[0] if name not in not_summed
        }
        tiers = [{**tier, "partition": i} for i, part in enumerate(parts) for tier in part["tiers"]]
        errors = (part["background_error"] for part in parts if part["background_error"])
        return {**counters, "background_error": next(errors, ""), "tiers": tiers}

    def close(self) -> None:
        """Frees memory and files. Later calls raise ClosedError, except for close() itself.

        Waits for pending checkpoints (`persist`), and raises their errors. Changes since the last
        checkpoint are lost. Waits for a close() in another thread.

        If files are kept (`SSDHashOption.keep_files`), close() first makes a checkpoint of all
        rows. If that fails it raises StorageError, nothing is lost, and close() may be called
        again. If a shard's process died it raises ShardLostError, and the next variable starts from
        the newest checkpoint that all shards have.
        """
        if self.internals.is_inherited():
            return
        with self._closing:
            self._close()

    def _close(self) -> None:
        failure: Exception | None = None
        self.internals.prefetched.forget()
        try:
            for finish in self.internals.before_close:
                finish()
        except Exception as error:  # the files are released after any error
            failure = error
        if failure is None and not self._has_closed_shards:  # closed remote shards can't be asked
            failure = self._keep_rows()
        may_be_tried_again = (
            failure is not None
            and self._option.storage_option.keeps_rows
            and not isinstance(failure, ShardLostError)
        )
        self._has_closed_shards = not may_be_tried_again
        for shard in self._shards if self._has_closed_shards else ():
            try:
                shard.close()
            except EmbStoreError as error:
                failure = failure or error
        self.internals.before_close.clear()
        while self.internals.after_close:
            self.internals.after_close.pop()()
        if failure is not None:
            raise failure

    def _keep_rows(self) -> EmbStoreError | None:
        """Makes a checkpoint of the rows in every partition; returns the error that one met.

        All partitions' checkpoints have the same id, and older ones are dropped once all have been
        made. A partition that has made its checkpoint makes no other, so the next attempt continues
        with the same id.
        """
        if not self._option.storage_option.keeps_rows:
            return None
        try:
            for shard in self._shards:
                shard.keep_rows()
            for shard in self._shards:
                shard.drop_older_rows()
        except EmbStoreError as error:
            return error
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of rows."""
        return self.total_count()[0]

    def __bool__(self) -> bool:
        return True  # also if it has no rows

    def __repr__(self) -> str:
        storage_type = self._option.storage_option.storage_type.name
        return f"EmbeddingVariable({self._name!r}, dim={self._dim}, storage_type={storage_type})"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self._name} can't be copied or pickled, since its rows lie in the tiers of this "
            "process; export() gives them"
        )

    def _routed(self, keys: NDArray[np.int64]) -> Iterator[tuple[Shard, NDArray[np.int64]]]:
        """Yields each partition with the positions of its keys in `keys`, in ascending order, so
        that gradients are summed in the batch's order.
        """
        positions, begins = _core.keys_by_partition(keys, len(self._shards))
        for shard, begin, end in zip(self._shards, begins, begins[1:], strict=False):
            yield shard, positions[begin:end]

    def _gather(
        self,
        ids: checks.Ids,
        read: Callable[[Shard, NDArray[np.int64]], NDArray[_ScalarT]],
        dtype: type[_ScalarT],
    ) -> NDArray[_ScalarT]:
        keys = checks.ids(ids)
        flat = keys.reshape(-1)
        if len(self._shards) == 1:
            return read(self._shards[0], flat).reshape(keys.shape)
        result = np.empty(flat.shape, dtype)
        for shard, where in self._routed(flat):
            result[where] = read(shard, flat[where])
        return result.reshape(keys.shape)


def push_to_remote_shards(
    batches: Sequence[tuple[EmbeddingVariable, NDArray[np.int64], NDArray[np.float32]]],
    global_step: int | None,
) -> list[tuple[EmbeddingVariable, EmbStoreError]]:
    """Pushes a batch of ids and gradients to the remote shards of each variable: all batches are
    applied, or none. Returns the variables that refused their batch, with the errors.
    """
    unique_keys = [variable._unique_keys(keys) for variable, keys, _ in batches]
    # Checks before any push takes a number, because shards would wait for the push of that number.
    refused = [
        (variable, error)
        for (variable, _, _), unique in zip(batches, unique_keys, strict=True)
        if (error := variable._push_error(unique)) is not None
    ]
    if refused or not batches:
        return refused
    with contextlib.ExitStack() as pushing:
        # All threads lock variables in one order, so that there is no deadlock.
        for variable, _, _ in sorted(batches, key=lambda batch: id(batch[0])):
            pushing.enter_context(variable._push_scope())
            pushing.enter_context(variable._push_lock)
        buffers = slices_of_one_array(
            [
                unique.keys.size * variable.dim
                for (variable, _, _), unique in zip(batches, unique_keys, strict=True)
            ]
        )
        pushed = []
        for (variable, _, values), unique, buffer in zip(
            batches, unique_keys, buffers, strict=True
        ):
            sums = buffer.reshape(-1, variable.dim)
            unique.sum(values, sums)
            pushed.append(variable._update_parts(unique, sums))
        refusals = push_together(pushed, global_step)
    _core.pay_pacing_debt()  # once the locks are free, so that no other thread waits for them
    return [
        (variable, error)
        for (variable, _, _), error in zip(batches, refusals, strict=True)
        if error is not None
    ]


def _with_access_names(stats: dict[str, Any]) -> dict[str, Any]:
    """Returns a shard's stats, with each access as an `Access`."""
    for tier in stats["tiers"]:
        for count in tier["accesses"]:
            count["access"] = Access(count["access"])
    return stats


def _columns(rows: ShardRows) -> Sequence[NDArray[Any]]:
    return [rows.keys, rows.values, rows.frequencies, rows.versions, *rows.slots]


def _take_over_kept_rows(name: str, shards: Sequence[Shard]) -> None:
    """Loads the newest checkpoint that every shard has; if no shard has any, starts with no rows.

    A process that ended while it closed the variable may have left some shards with a newer
    checkpoint. Every shard makes an empty checkpoint at its start, so a shard without any has lost
    its files. Raises StorageError then, and if the shards have no checkpoint in common, which no
    process leaves behind. (`prepare_places` refuses rows without a checkpoint.)
    """
    kept = [shard.kept_rows() for shard in shards]
    newest = next((one for one in reversed(kept[0]) if all(one in ids for ids in kept)), None)
    are_all_new = all(one == _NO_ROWS for ids in kept for one in ids)
    if newest is None and not are_all_new:
        gone = [f"part{number}" for number, ids in enumerate(kept) if not set(ids) - {_NO_ROWS}]
        what = (
            f"no rows are kept of {', '.join(gone)}, though other partitions have theirs"
            if gone
            else "the rows that its partitions kept are not of one close()"
        )
        raise StorageError(
            f"{name}: {what}; put the files of all partitions (.ssdhash, .checkpoint-*) back as "
            "one close() left them, or remove all of them to begin with no rows"
        )
    keep_as = os.urandom(16)
    for shard in shards:
        shard.take_over_kept_rows(newest, keep_as)
    if newest is None:
        for shard in shards:
            shard.keep_no_rows(_NO_ROWS)
