"""Embedding variables: tables of rows by int64 key, looked up and trained in batches."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from embstore import _checks, _core
from embstore._closing_at_exit import close_at_exit
from embstore._device_batches import (
    IdsOnDevice,
    OnDevice,
    check_same_gpu,
    ids_on_host,
    is_on_device,
    to_host,
)
from embstore._gpu import full_name
from embstore._prefetched import Prefetched
from embstore._several_shards import Later, Part, apply_to_all, look_up_later, wait_for_all
from embstore._shard import LocalShard, Shard, ShardRows
from embstore._steps_on_device import ApplyStep, LookUpStep, apply_together, look_up_together
from embstore.devices import Access
from embstore.errors import (
    ClosedError,
    EmbStoreError,
    ForkedError,
    InvalidArgumentError,
    ShardLostError,
    UnsupportedError,
)
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption

if TYPE_CHECKING:
    from typing_extensions import Self

    from embstore._persist_writer import PersistWriter

__all__ = ["EmbeddingVariable"]

OnDamage: TypeAlias = Literal["raise", "skip"]

_ScalarT = TypeVar("_ScalarT", bound=np.generic)


class EmbeddingVariable:
    """Rows of `dim` float32 values by int64 key; every int64 is a legal key.

    ids: int64, of any shape; an array must be int64 already, lists of ints are converted.
    Every method may be called from any thread. Use it as a context manager, or `close()` it, to
    give its memory and files back; one that is open when the program ends is closed then. Made by
    `get_embedding_variable`.

    It belongs to the process that made it. In one that was forked from that its methods raise
    ForkedError, but for close(), which does nothing there: so leaving a `with` block is no error.
    Open it in the worker instead, or start workers by spawn.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: Optimizer | None,
        ev_option: EmbeddingVariableOption,
        shards: Sequence[Shard],
    ) -> None:
        """shards: one a partition; the variable closes them."""
        self._name = name
        self._dim = dim
        self._optimizer = optimizer
        self._option = ev_option
        self._made_in = _core.fork_generation()
        # Held while a batch goes to the partitions: that all have room is settled before the first
        # changes, and must stay so.
        self._partitions_lock = threading.Lock()
        # For embstore.checkpoint: held over a save or a restore; and the id of the last of either,
        # which an incremental save goes on from.
        self._checkpoint_lock = threading.Lock()
        self._last_save: str | None = None
        # For embstore.durability: what writes the checkpoints of the pool.
        self._persist_writer: PersistWriter | None = None
        # How often the learning rate was set or restored: who knows what it was then need not ask a
        # shard elsewhere for it at every step.
        self._rate_changes = 0
        self._shards = tuple(shards)
        self._is_elsewhere = any(hasattr(shard, "lookup_later") for shard in self._shards)
        self._is_shared = False  # with the other workers of a job, who train it too
        self._prefetched = Prefetched()
        # The id of the checkpoint that close() makes where files are kept.
        self._kept_as = os.urandom(16)
        if ev_option.storage_option.keeps_rows:
            _take_over_kept_rows(self._shards)
        close_at_exit(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def dim(self) -> int:
        """Values a row."""
        return self._dim

    @property
    def optimizer(self) -> Optimizer | None:
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """By which the next `apply_gradients` trains: the optimizer's own until it is set.

        It may be set at any time and from any thread; an apply that has begun isn't changed by it.
        Saves keep it, and `embstore.restore` brings it back; so do kept files
        (`SSDHashOption.keep_files`). Raises InvalidArgumentError where the variable has no
        optimizer, or the optimizer can't work with the value.
        """
        self._check_trainable()
        return self._shards[0].learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        rate = self._check_trainable().check_learning_rate(value)
        self._refuse_if_forked()
        with self._partitions_lock:  # so that no batch trains some of its keys by the old one
            self._rate_changes += 1
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
        ids: _checks.Ids,
        *,
        train: bool = False,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    def lookup(self, ids: OnDevice, *, train: bool = False, out: Any = None) -> Any: ...
    def lookup(self, ids: _checks.Ids | OnDevice, *, train: bool = False, out: Any = None) -> Any:
        """The rows of `ids`, float32 of ids.shape + (dim,); unknown keys read their initial row.

        train: a lookup that `apply_gradients` will follow, which counts and promotes; so this one
            doesn't. A serving lookup does both by itself. Neither inserts rows.
        out: C-contiguous float32 of that shape to write into and return, in place of a new array.

        ids on a GPU: an array that speaks DLPack, as PyTorch's CUDA tensors and `DeviceArray` do,
        for a variable with a tier of HBM on that GPU. The rows are there too, as a tensor or a
        DeviceArray. A look-up is put on PyTorch's current stream (else on the default one) and
        waits for nothing: rows that lie in HBM don't pass through the host. Rows that can't be
        read are NaN; the next look-up, apply, save, `drain()` or `synchronize()` raises the error.
        A look-up while a save is under way passes through the host.
        """
        if is_on_device(ids):
            look_up = LookUpStep.of(self, ids, out)
            look_up_together([look_up], train)
            return look_up.out
        keys = _checks.ids(ids)
        shape = (*keys.shape, self._dim)
        if out is None:
            out = np.empty(shape, np.float32)
        else:
            _checks.out(out, shape, keys)
        keys, rows = keys.reshape(-1), out.reshape(-1, self._dim)
        if not train or not self._is_elsewhere:
            self._look_up(keys, train, rows)
            return out
        pending = self._prefetched.take(keys) or _Pending(self, keys)
        pending.write_to(rows)
        return out

    @property
    def gpu(self) -> str | None:
        """The GPU of all partitions' tiers of HBM in this process, where batches of ids may stay:
        "cuda:N" or "emulated". None: there is none.
        """
        shards = self._shards_with_hbm()
        return full_name(shards[0].gpu) if shards and shards[0].gpu else None

    def synchronize(self) -> None:
        """Returns when what was put on a GPU's streams is done; raises what it met."""
        for shard in self._shards:
            if isinstance(shard, LocalShard):
                shard.synchronize()

    def prefetch(self, *batch: _checks.Ids | OnDevice) -> None:
        """Has the rows of a batch on their way while others are trained.

        batch: the ids of the look-ups for training that will come, those of one `apply_gradients`;
            batches in the order in which they will be trained. Ids may be on a GPU, as `lookup()`
            takes them; the host reads them when their stream gets there, and waits for nothing.

        Look-ups and training give the same with this and without. `embstore.pulling` does it for
        the batches of a loop. What is asked for:

        - Shards elsewhere (`shards`) are asked for their rows, which they read when the batches
          before have been trained. A look-up with other ids, or sooner, reads its rows itself.
        - Of a variable with a tier of HBM here, rows of lower tiers come up to it in the
          background, as many of the batch as fit beside those of the batches before. They stay
          there until `apply_gradients` of their batch, or until 16 more batches were asked for.
          Ids without a row get none, and nothing is counted.
        - Other variables have their rows here already, and do nothing.
        """
        if self._is_elsewhere:
            arrays = [ids_on_host(ids).reshape(-1) for ids in batch]
            self._refuse_if_forked()
            self._prefetched.add(arrays, lambda ids, ahead: _Pending(self, ids, ahead))
        else:
            self._prefetch_to_hbm(batch)

    def _prefetch_to_hbm(self, batch: Sequence[_checks.Ids | OnDevice]) -> None:
        gpu = self.gpu
        here: list[NDArray[np.int64]] = []
        there: list[IdsOnDevice] = []
        for ids in batch:
            if gpu is not None and is_on_device(ids):
                there.append(IdsOnDevice.of(ids))
                check_same_gpu(self._name, there[-1], gpu)
            else:
                here.append(ids_on_host(ids).reshape(-1))
        shards = self._shards_with_hbm()
        if not shards:
            return
        turns = [shard.next_turn() for shard in shards]
        keys = np.concatenate(here) if here else np.empty(0, np.int64)
        self._refuse_if_forked()
        parts = [keys]
        if len(shards) > 1:
            parts = [keys[where] for _, where in self._routed(keys)]
        for number, (shard, turn, part) in enumerate(zip(shards, turns, parts, strict=True)):
            shard.prefetch(part, turn)
            for on_device in there:
                shard.prefetch_on_device(
                    on_device.address,
                    prod(on_device.shape),
                    on_device.stream,
                    turn,
                    number,
                    len(shards),
                )

    @property
    def _prefetches(self) -> bool:
        """Whether `prefetch` has anything to do."""
        return self._is_elsewhere or bool(self._shards_with_hbm())

    def _shards_with_hbm(self) -> list[LocalShard]:
        """All of them, or none."""
        shards = [shard for shard in self._shards if isinstance(shard, LocalShard) and shard.gpu]
        return shards if len(shards) == len(self._shards) else []

    def _look_up(self, keys: NDArray[np.int64], train: bool, rows: NDArray[np.float32]) -> None:
        if len(self._shards) == 1:
            self._shards[0].lookup(keys, train, rows)
            return
        wheres, asked = [], []
        for shard, where in self._routed(keys):
            wheres.append(where)
            asked.append(look_up_later(shard, keys[where], train))
        for where, found in zip(wheres, wait_for_all(asked), strict=True):
            rows[where] = found

    def apply_gradients(
        self,
        ids: _checks.Ids | OnDevice,
        grads: _checks.Rows | OnDevice,
        global_step: int | None = None,
    ) -> None:
        """Trains the rows of `ids`, inserting those that are new, with one optimizer step.

        grads: float32 of ids.shape + (dim,); those of a key that occurs more than once are
            summed, in order.
        global_step: becomes the rows' version; by default the number of applies so far, from 0.

        ids and grads both on a GPU, as `lookup()` takes ids there: the update is put on the same
        stream and waits for nothing. What it meets is raised by the next look-up, apply, save,
        `drain()` or `synchronize()`, and it counts as an apply. For a variable without HBM, and
        while a save is under way, they are copied to the host.

        Whole or not at all: an error leaves every row as it was. StoreFullError where the new rows
        have no room; DamagedRowsError, StorageError where rows can't be read, or room for them
        can't be made.
        """
        self._check_trainable()
        if global_step is not None:
            global_step = _checks.integer("global_step", global_step, at_least=0)
        if is_on_device(ids) and is_on_device(grads) and self.gpu is not None:
            apply_together([ApplyStep.of(self, ids, grads)], global_step)
            return
        keys = ids_on_host(ids)
        if is_on_device(grads):
            grads = to_host("grads", grads)
        values = _checks.grads(grads, (*keys.shape, self._dim))
        keys, values = keys.reshape(-1), values.reshape(-1, self._dim)
        with self._prefetched.push():
            self._apply(keys, values, global_step)
        if len(self._shards) > 1:
            _core.wait_as_owed()  # not while others wait for a lock

    def _apply(
        self, keys: NDArray[np.int64], values: NDArray[np.float32], global_step: int | None
    ) -> None:
        occurrences = None
        if self._is_elsewhere:
            unique = _core.UniqueIds(keys)
            keys, occurrences = unique.keys(), unique.occurrences()
            sums = np.empty((keys.size, self._dim), np.float32)
            unique.sum(values, sums)
            values = sums
        if len(self._shards) == 1:
            self._shards[0].apply_gradients(keys, values, global_step, occurrences)
            return
        self._refuse_if_forked()
        # Every shard takes part, if only with an empty batch: each counts the applies itself.
        parts = [
            Part(
                shard,
                keys[where],
                values[where],
                None if occurrences is None else occurrences[where],
            )
            for shard, where in self._routed(keys)
        ]
        with self._partitions_lock:
            apply_to_all(parts, global_step)

    def lookup_tier(self, ids: _checks.Ids) -> NDArray[np.int32]:
        """The tier that each row lies in, from 0, or -1 where there is no row; of ids.shape."""
        return self._gather(ids, lambda shard, keys: shard.lookup_tier(keys), np.int32)

    def get_frequency(self, ids: _checks.Ids) -> NDArray[np.int64]:
        """How often each key occurred in `apply_gradients`; 0 for unknown keys; of ids.shape."""
        return self._gather(ids, lambda shard, keys: shard.frequency(keys), np.int64)

    def get_version(self, ids: _checks.Ids) -> NDArray[np.int64]:
        """The global step of each key's last apply; -1 for unknown keys; of ids.shape."""
        return self._gather(ids, lambda shard, keys: shard.version(keys), np.int64)

    def total_count(self) -> tuple[int, int]:
        """(rows, dim)."""
        return sum(shard.size() for shard in self._shards), self._dim

    def export(self, *, on_damage: OnDamage = "raise") -> dict[str, NDArray[Any]]:
        """Every row, in ascending order of keys.

        keys int64 (n,), values float32 (n, dim), freqs int64 (n,), versions int64 (n,), and for
        each of the optimizer's slots, by its name, float32 (n, dim).

        on_damage: what to do where a medium doesn't give rows back as they were written: "raise"
            DamagedRowsError, which has their `keys`, or "skip" them.
        """
        skip = _checks.choice("on_damage", on_damage, ("raise", "skip")) == "skip"
        slots = self._optimizer.slots if self._optimizer is not None else ()
        names = ("keys", "values", "freqs", "versions", *slots)
        parts = [_columns(shard.export(skip)) for shard in self._shards]
        columns = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([part[0] for part in parts]))
            columns = [np.concatenate(column)[order] for column in zip(*parts, strict=True)]
        return dict(zip(names, columns, strict=True))

    def damaged_keys(self) -> NDArray[np.int64]:
        """The keys of rows that a medium doesn't give back as they were written; (n,), ascending.

        Reads every row. All other rows are as they were; those are lost, and their look-ups,
        applies, saves and exports raise DamagedRowsError, until the medium gives them back, or
        `drop_damaged()` or a restore has them gone.
        """
        return np.sort(np.concatenate([shard.find_damaged() for shard in self._shards]))

    def drop_damaged(self) -> NDArray[np.int64]:
        """Removes those rows; their keys start anew. Returns the keys, (n,), ascending."""
        self._refuse_if_forked()
        dropped = []
        self._prefetched.forget()
        for shard in self._shards:
            dropped.append(shard.find_damaged())
            shard.drop(dropped[-1])
        return np.sort(np.concatenate(dropped))

    def drain(self) -> None:
        """Returns when every tier is within its capacity and no row is being moved."""
        for shard in self._shards:
            shard.drain()

    def stats(self) -> dict[str, Any]:
        """Counters since the variable was made, and the tiers.

        hits: ids looked up, duplicates too, whose row was in the first tier.
        misses: the others, whose row was in a lower tier, or that have none. A batch counts both
            when it is looked up, whether to serve or to train; applies, and what else reads rows,
            count neither. hits / (hits + misses) is the first tier's hit rate.
        promotions and demotions: rows that went up to the first tier, and down by a tier.
        forgotten_accesses: ids looked up to serve that were never counted for the cache's ranking,
            since a save or a failing medium held moves off for too long.
        background_error: what the last attempt to move rows met; "" if it went well. Nothing is
            lost by it, and it is tried again.
        waiting_keys: that were counted, and are below their filter's threshold.
        index_bytes: memory of the index, which finds rows by key.
        tiers: a list of one dict a tier: name, rows, capacity_rows, bytes (of its rows), row_bytes,
            address (of the first row; 0 if none), mapped_bytes, path, is_pmem (None where nothing
            can tell), io_scheme (of an SSDHASH tier, by which it reads what isn't in the page
            cache: "io_uring" or "pread"; else None), gpu (of an HBM tier, the GPU's name, or
            "emulated"; else None), accesses, device (the name of the one that it takes as long as
            on, from `StorageOption.devices`; else None).
        tiers[i]["accesses"]: how the tier's rows were touched, a list of one dict for each access
            (an `embstore.Access`) and number of threads: access, threads, accesses (contiguous
            pieces that were touched, or calls for files), bytes (of those), elapsed_ns (in all
            threads together, with the engine's own work on those rows). threads: how many of this
            process were at what the tier lies on, DRAM or the storage_path, the one that is counted
            included, from 1 to 64, which stands for more too. A look-up loads the weights of rows
            in the first tier. An update stores new rows and updates all of a batch, whole; a row
            that moves is loaded and stored. What lies beside a row in the same memory is a piece of
            its own. The index, ranks and what else lies in DRAM anyway isn't counted, nor are rows
            that the page cache gives without a call. LevelDB's own files can't be looked at from
            outside: counted are the records that it was asked for, and the batches that it wrote to
            its log; it also reads whole blocks, and compacts.

        With partitions, counters are sums, and the tiers of each partition follow those of the one
        before, and have its number as "partition".
        """
        parts = [_named(shard.stats()) for shard in self._shards]
        if len(parts) == 1:
            return parts[0]
        apart = ("background_error", "tiers")
        counters = {
            name: sum(part[name] for part in parts) for name in parts[0] if name not in apart
        }
        tiers = [{**tier, "partition": i} for i, part in enumerate(parts) for tier in part["tiers"]]
        errors = (part["background_error"] for part in parts if part["background_error"])
        return {**counters, "background_error": next(errors, ""), "tiers": tiers}

    def close(self) -> None:
        """Gives memory and files back; later calls but this one raise ClosedError.

        Waits for checkpoints that are pending (`persist`), and raises what they met. What changed
        since the last one is gone with the variable.

        If files are kept (`SSDHashOption.keep_files`), close() makes a checkpoint of all rows
        first. StorageError means that it couldn't; nothing is lost then, and close() may be called
        again. Where a shard's process died (ShardLostError), the variable goes on from the newest
        checkpoint that all shards have.
        """
        if self._is_inherited():
            return
        refused: EmbStoreError | None = None
        self._prefetched.forget()
        try:
            self._finish_persists()
        except EmbStoreError as error:
            refused = error
        if refused is None:
            refused = self._keep_rows()
        may_be_tried_again = (
            refused is not None
            and self._option.storage_option.keeps_rows
            and not isinstance(refused, ShardLostError)
        )
        for shard in () if may_be_tried_again else self._shards:
            try:
                shard.close()
            except EmbStoreError as error:
                refused = refused or error
        if self._persist_writer is not None:
            self._persist_writer.leave()
            self._persist_writer = None
        if refused is not None:
            raise refused

    def _keep_rows(self) -> EmbStoreError | None:
        """Makes a checkpoint of the rows in every partition, or returns why one couldn't.

        All have the same id, and older ones are dropped when all have it. A partition that has one
        makes no other, so the next attempt goes on with that id.
        """
        if not self._option.storage_option.keeps_rows:
            return None
        try:
            for shard in self._shards:
                shard.keep_rows(self._kept_as)
            for shard in self._shards:
                shard.drop_older_rows()
        except EmbStoreError as error:
            return error
        return None

    def _forget_prefetched(self) -> None:
        """Before rows change by something else than `apply_gradients`."""
        self._prefetched.forget()
        for shard in self._shards_with_hbm():
            with contextlib.suppress(ClosedError, ForkedError):
                shard.forget_prefetched()

    def _finish_persists(self) -> None:
        """Returns when no checkpoint of the pool is pending; raises what one met."""
        if self._persist_writer is not None:
            self._persist_writer.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        storage_type = self._option.storage_option.storage_type.name
        return f"EmbeddingVariable({self._name!r}, dim={self._dim}, storage_type={storage_type})"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self._name} can't be copied or pickled, since its rows lie in the tiers of this "
            "process; export() gives them"
        )

    def _applies(self) -> int:
        """How many applies it had. Asks every shard, which takes a call where one is elsewhere."""
        return max(shard.apply_count() for shard in self._shards)

    def _check_trainable(self) -> Optimizer:
        if self._optimizer is None:
            raise InvalidArgumentError(
                f"{self._name} was made without an optimizer and can't be trained, nor has it a "
                "learning_rate; give get_embedding_variable an optimizer="
            )
        return self._optimizer

    def _is_inherited(self) -> bool:
        return _core.fork_generation() != self._made_in

    def _refuse_if_forked(self) -> None:
        """Before a lock of Python's is waited for, which a thread may have held that isn't here."""
        if self._is_inherited():
            raise ForkedError(
                f"{self._name} belongs to the process that this one was forked from; open it in "
                "the worker, or start workers by spawn"
            )

    def _routed(self, keys: NDArray[np.int64]) -> Iterator[tuple[Shard, NDArray[np.int64]]]:
        """Each partition with where in `keys` its own are, in order, so that sums stay the same."""
        positions, begins = _core.keys_by_partition(keys, len(self._shards))
        for shard, begin, end in zip(self._shards, begins, begins[1:], strict=False):
            yield shard, positions[begin:end]

    def _gather(
        self,
        ids: _checks.Ids,
        read: Callable[[Shard, NDArray[np.int64]], NDArray[_ScalarT]],
        dtype: type[_ScalarT],
    ) -> NDArray[_ScalarT]:
        keys = _checks.ids(ids)
        flat = keys.reshape(-1)
        if len(self._shards) == 1:
            return read(self._shards[0], flat).reshape(keys.shape)
        result = np.empty(flat.shape, dtype)
        for shard, where in self._routed(flat):
            result[where] = read(shard, flat[where])
        return result.reshape(keys.shape)


class _Pending:
    """The rows of a look-up for training, of shards elsewhere: each key goes to its shard once, and
    its row comes once.

    ahead: so many more pushes are to be applied before.
    """

    def __init__(self, variable: EmbeddingVariable, ids: NDArray[np.int64], ahead: int = 0) -> None:
        self._unique = _core.UniqueIds(ids)
        keys, occurrences = self._unique.keys(), self._unique.occurrences()
        self._found = np.empty((keys.size, variable.dim), np.float32)
        self._wheres: list[NDArray[np.intp]] = []
        self._asked: list[Later[NDArray[np.float32]]] = []
        if len(variable._shards) == 1:
            (shard,) = variable._shards
            self._asked.append(look_up_later(shard, keys, True, self._found, occurrences, ahead))
            return
        for shard, where in variable._routed(keys):
            self._wheres.append(where)
            self._asked.append(
                look_up_later(shard, keys[where], True, None, occurrences[where], ahead)
            )

    def write_to(self, rows: NDArray[np.float32]) -> None:
        answers = wait_for_all(self._asked)
        for where, found in zip(self._wheres, answers, strict=False):  # of one shard: it is there
            self._found[where] = found
        self._unique.spread(self._found, rows)

    def give_up(self) -> None:
        for later in self._asked:
            later.give_up()


def _named(stats: dict[str, Any]) -> dict[str, Any]:
    """A shard's stats, with accesses by name."""
    for tier in stats["tiers"]:
        for count in tier["accesses"]:
            count["access"] = Access(count["access"])
    return stats


def _columns(rows: ShardRows) -> Sequence[NDArray[Any]]:
    return [rows.keys, rows.values, rows.frequencies, rows.versions, *rows.slots]


def _take_over_kept_rows(shards: Sequence[Shard]) -> None:
    """Begins with the newest checkpoint that every shard has; with none if there is no such.

    A process that ended while it closed the variable may have left some shards with a newer one.
    """
    kept = [shard.kept_rows() for shard in shards]
    newest = next((one for one in reversed(kept[0]) if all(one in ids for ids in kept)), None)
    for shard in shards:
        shard.take_over_kept_rows(newest)
