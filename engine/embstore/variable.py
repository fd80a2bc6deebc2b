"""Embedding variables: tables of rows by int64 key, looked up and trained in batches."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from embstore import _checks
from embstore._core import Table
from embstore.errors import (
    EmbStoreError,
    InvalidArgumentError,
    StorageError,
    StoreFullError,
    UnsupportedError,
)
from embstore.initializers import Initializer, TruncatedNormal, check_initializer, initial_rows
from embstore.optimizers import SGD, Optimizer, check_optimizer
from embstore.options import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariableOption,
    IoScheme,
    SSDHashOption,
    StorageOption,
    Tier,
    TierKind,
    check_runs,
)
from embstore.recovery import RecoveryReport, take_over

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EmbeddingVariable", "get_embedding_variable"]

_ScalarT = TypeVar("_ScalarT", bound=np.generic)

KEPT_FILES_NOTE = "sequence.ssdhash"  # beside rows that are kept; see engine/FORMAT.md

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
) -> EmbeddingVariable:
    """Makes a variable: an empty one, unless rows were kept for it (`SSDHashOption.keep_files`).

    name: names the variable in messages and its files.
    embedding_dim: values a row.
    initializer: what rows start as; TruncatedNormal() where neither this nor
        `ev_option.init_option.initializer`, which wins, is given.
    optimizer: one of `embstore.optimizers`; without one the variable can't be trained.
    ev_option: where rows are kept, and how they start; DRAM where it isn't given.
    partition_num: tables that the keys are spread over, by key % partition_num; each has tiers
        of its own, of the full storage_size.

    Raises InvalidArgumentError, UnsupportedError, MissingLibraryError, MissingDeviceError,
    StoreFullError (memkind's node has less room than storage_size) or StorageError.
    """
    return EmbeddingVariable(
        name,
        embedding_dim,
        initializer=initializer,
        optimizer=optimizer,
        ev_option=ev_option,
        partition_num=partition_num,
    )


class EmbeddingVariable:
    """Rows of `dim` float32 values by int64 key; every int64 is a legal key.

    ids: int64, of any shape; an array must be int64 already, lists of ints are converted.
    Every method may be called from any thread. Use it as a context manager, or `close()` it, to
    give its memory and files back. Made by `get_embedding_variable`.
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        *,
        initializer: Initializer | None = None,
        optimizer: Optimizer | None = None,
        ev_option: EmbeddingVariableOption | None = None,
        partition_num: int = 1,
    ) -> None:
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgumentError(f"name must be a string that isn't empty, got {name!r}")
        dim = _checks.integer("embedding_dim", embedding_dim, at_least=1, at_most=MAX_DIM)
        partitions = _checks.integer(
            "partition_num", partition_num, at_least=1, at_most=MAX_PARTITIONS
        )
        if initializer is not None:
            check_initializer(initializer)
        if optimizer is not None:
            check_optimizer(optimizer)
        if ev_option is None:
            ev_option = EmbeddingVariableOption()
        elif not isinstance(ev_option, EmbeddingVariableOption):
            raise InvalidArgumentError(
                "ev_option must be an embstore.EmbeddingVariableOption, "
                f"got {type(ev_option).__name__}"
            )
        self._name = name
        self._dim = dim
        self._optimizer = optimizer
        self._option = ev_option
        # Held while a batch goes to the partitions: that all have room is settled before the first
        # changes, and must stay so.
        self._partitions_lock = threading.Lock()
        # For embstore.checkpoint: held over a save or a restore; and the id of the last of either,
        # which an incremental save goes on from.
        self._checkpoint_lock = threading.Lock()
        self._last_save: str | None = None
        self._tables = _make_tables(
            name, dim, initializer or TruncatedNormal(), optimizer, ev_option, partitions
        )
        self._recovery = take_over(self._tables)

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
    def ev_option(self) -> EmbeddingVariableOption:
        return self._option

    @property
    def partition_num(self) -> int:
        return len(self._tables)

    @property
    def recovery(self) -> RecoveryReport | None:
        """What was taken over from an earlier process, and how much of it is missing; None where
        none had kept files here (`SSDHashOption.keep_files`).
        """
        return self._recovery

    def lookup(
        self,
        ids: _checks.Ids,
        *,
        train: bool = False,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """The rows of `ids`, float32 of ids.shape + (dim,); unknown keys read their initial row.

        train: a lookup that `apply_gradients` will follow, which counts and promotes; so this one
            doesn't. A serving lookup does both by itself. Neither inserts rows.
        out: C-contiguous float32 of that shape to write into and return, in place of a new array.
        """
        keys = _checks.ids(ids)
        shape = (*keys.shape, self._dim)
        if out is None:
            out = np.empty(shape, np.float32)
        else:
            _checks.out(out, shape)
        keys, rows = keys.reshape(-1), out.reshape(-1, self._dim)
        if len(self._tables) == 1:
            self._tables[0].lookup(keys, rows, train)
            return out
        for table, where in self._routed(keys):
            part = np.empty((where.size, self._dim), np.float32)
            table.lookup(keys[where], part, train)
            rows[where] = part
        return out

    def apply_gradients(
        self, ids: _checks.Ids, grads: _checks.Rows, global_step: int | None = None
    ) -> None:
        """Trains the rows of `ids`, inserting those that are new, with one optimizer step.

        grads: float32 of ids.shape + (dim,); those of a key that occurs more than once are
            summed, in order.
        global_step: becomes the rows' version; by default the number of applies so far, from 0.

        Raises StoreFullError, before anything is changed, where the new rows have no room.
        """
        if self._optimizer is None:
            raise InvalidArgumentError(
                f"{self._name} was made without an optimizer and can't be trained; "
                "give get_embedding_variable an optimizer="
            )
        keys = _checks.ids(ids)
        values = _checks.grads(grads, (*keys.shape, self._dim))
        if global_step is not None:
            global_step = _checks.integer("global_step", global_step, at_least=0)
        keys, values = keys.reshape(-1), values.reshape(-1, self._dim)
        if len(self._tables) == 1:
            self._tables[0].apply_gradients(keys, values, global_step)
            return
        parts = [(table, keys[where], where) for table, where in self._routed(keys)]
        with self._partitions_lock:
            for table, part, _ in parts:
                _check_room(table, part)
            # Every table takes part, if only with an empty batch: each counts the applies itself.
            for table, part, where in parts:
                table.apply_gradients(part, values[where], global_step)

    def lookup_tier(self, ids: _checks.Ids) -> NDArray[np.int32]:
        """The tier that each row lies in, from 0, or -1 where there is no row; of ids.shape."""
        return self._gather(ids, Table.lookup_tier, np.int32)

    def get_frequency(self, ids: _checks.Ids) -> NDArray[np.int64]:
        """How often each key occurred in `apply_gradients`; 0 for unknown keys; of ids.shape."""
        return self._gather(ids, Table.frequency, np.int64)

    def get_version(self, ids: _checks.Ids) -> NDArray[np.int64]:
        """The global step of each key's last apply; -1 for unknown keys; of ids.shape."""
        return self._gather(ids, Table.version, np.int64)

    def total_count(self) -> tuple[int, int]:
        """(rows, dim)."""
        return sum(table.size() for table in self._tables), self._dim

    def export(self) -> dict[str, NDArray[Any]]:
        """Every row, in ascending order of keys.

        keys int64 (n,), values float32 (n, dim), freqs int64 (n,), versions int64 (n,), and for
        each of the optimizer's slots, by its name, float32 (n, dim).
        """
        slots = self._optimizer.slots if self._optimizer is not None else ()
        names = ("keys", "values", "freqs", "versions", *slots)
        parts = [_columns(table) for table in self._tables]
        columns = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([part[0] for part in parts]))
            columns = [np.concatenate(column)[order] for column in zip(*parts, strict=True)]
        return dict(zip(names, columns, strict=True))

    def drain(self) -> None:
        """Returns when every tier is within its capacity and no row is being moved."""
        for table in self._tables:
            table.drain()

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and the tiers.

        hits and misses (ids looked up that had a row or none), promotions, demotions,
        waiting_keys, index_bytes; and "tiers", a list of one dict a tier: name, rows,
        capacity_rows, bytes (of its rows), row_bytes, address (of the first row; 0 if none),
        mapped_bytes, path, is_pmem (None where nothing can tell), io_scheme (of an SSDHASH tier,
        by which it reads what isn't in the page cache: "io_uring" or "pread"; else None). With
        partitions, the tiers of each follow those of the one before, and have its number as
        "partition".
        """
        parts = [table.stats() for table in self._tables]
        if len(parts) == 1:
            return parts[0]
        counters = {name: sum(part[name] for part in parts) for name in parts[0] if name != "tiers"}
        tiers = [{**tier, "partition": i} for i, part in enumerate(parts) for tier in part["tiers"]]
        return {**counters, "tiers": tiers}

    def close(self) -> None:
        """Gives memory and files back; later calls but this one raise ClosedError.

        Where files are kept (`SSDHashOption.keep_files`) the rows go to them first: StorageError
        if they can't. Then nothing is lost yet, and close() may be called again.
        """
        refused: EmbStoreError | None = None
        for table in self._tables:
            try:
                table.close()
            except EmbStoreError as error:
                refused = refused or error
        if refused is not None:
            raise refused

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

    def _routed(self, keys: NDArray[np.int64]) -> Iterator[tuple[Table, NDArray[np.intp]]]:
        """Each partition with where in `keys` its own are, in order, so that sums stay the same."""
        partition = keys % len(self._tables)  # numpy's % is floor modulo: never negative
        order = np.argsort(partition, kind="stable")
        counts = np.bincount(partition, minlength=len(self._tables))
        return zip(self._tables, np.split(order, np.cumsum(counts)[:-1]), strict=True)

    def _gather(
        self,
        ids: _checks.Ids,
        read: Callable[[Table, NDArray[np.int64]], NDArray[_ScalarT]],
        dtype: type[_ScalarT],
    ) -> NDArray[_ScalarT]:
        keys = _checks.ids(ids)
        flat = keys.reshape(-1)
        if len(self._tables) == 1:
            return read(self._tables[0], flat).reshape(keys.shape)
        result = np.empty(flat.shape, dtype)
        for table, where in self._routed(flat):
            result[where] = read(table, flat[where])
        return result.reshape(keys.shape)


def _make_tables(
    name: str,
    dim: int,
    initializer: Initializer,
    optimizer: Optimizer | None,
    option: EmbeddingVariableOption,
    partitions: int,
) -> list[Table]:
    init = option.init_option
    if init.initializer is not None:
        initializer = init.initializer
    default_values = initial_rows(initializer, (init.default_value_dim, dim))
    # A variable that is never trained still needs rows without slots: those of SGD.
    core_optimizer = optimizer if optimizer is not None else SGD(learning_rate=0.0)
    check_runs(option.storage_option.storage_type)
    tiers = option.storage_option.tiers()
    file_names = [f"{name}.part{i}" for i in range(partitions)] if partitions > 1 else [name]
    for tier in tiers:
        if tier.path is not None:
            _make_directory(tier.path)
            _refuse_other_partitions(tier, name, file_names)
    tables: list[Table] = []
    try:
        for file_name in file_names:
            # What kept files are known by: with another partition_num a key lies elsewhere.
            table_name = f"{file_name} of {partitions}" if partitions > 1 else name
            tables.append(
                Table(
                    dim=dim,
                    default_values=default_values,
                    optimizer=core_optimizer.name,
                    optimizer_params=core_optimizer.params(),
                    tiers=[
                        (tier.kind.value, _tier_file(tier, file_name), tier.size_bytes)
                        for tier in tiers
                    ],
                    name=table_name,
                    cache_strategy=option.storage_option.cache_strategy.name,
                    filter=_core_filter(option.filter_option),
                    no_permission_value=init.default_value_no_permission,
                    ssd_hash=_core_ssd_hash(option.storage_option),
                )
            )
    except BaseException:
        for table in tables:
            table.close()
        raise
    return tables


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


def _core_ssd_hash(storage: StorageOption) -> tuple[bool, str, bool, int, int, bool]:
    option = storage.ssdhash_option or SSDHashOption()
    return (
        option.direct_io,
        IoScheme(option.io_scheme).value,
        option.keep_files,
        option.file_bytes,
        option.buffer_bytes,
        option.sync,
    )


def _columns(table: Table) -> Sequence[NDArray[Any]]:
    keys, values, freqs, versions, slots = table.export()
    return [keys, values, freqs, versions, *slots]


def _check_room(table: Table, keys: NDArray[np.int64]) -> None:
    """Raises StoreFullError where the new ones of `keys` don't fit."""
    tiers = table.stats()["tiers"]
    if tiers[-1]["capacity_rows"] is None:
        return
    room = sum(tier["capacity_rows"] - tier["rows"] for tier in tiers)
    if keys.size <= room:
        return
    absent = int((table.lookup_tier(np.unique(keys)) < 0).sum())
    if absent > room:
        raise StoreFullError(
            f"the batch brings a partition {absent} new keys, but its tiers have room for {room} "
            "more rows; raise storage_size"
        )


def _tier_file(tier: Tier, file_name: str) -> str | None:
    if tier.path is None:
        return None
    return str(Path(tier.path) / f"{quote(file_name, safe='')}.{tier.kind.value.lower()}")


def _refuse_other_partitions(tier: Tier, name: str, file_names: Sequence[str]) -> None:
    """Raises StorageError where rows were kept for more partitions, or fewer.

    Those of these very names are left to the core.
    """
    if tier.kind is not TierKind.SSDHASH or tier.path is None:
        return
    quoted = re.escape(quote(name, safe=""))
    ours = {_tier_file(tier, file_name) for file_name in file_names}
    for directory in sorted(Path(tier.path).iterdir()):
        if (
            re.fullmatch(rf"{quoted}(\.part\d+)?\.ssdhash", directory.name)
            and str(directory) not in ours
            and (directory / KEPT_FILES_NOTE).exists()
        ):
            raise StorageError(
                f"{directory}: rows of {name} were kept here by a variable of another "
                "partition_num; take them over with that one, or remove the directory"
            )


def _make_directory(path: str) -> None:
    # Only the last part of the path: making the rest too would turn a mistyped or unmounted
    # device into an ordinary directory without a word.
    try:
        Path(path).mkdir(exist_ok=True)
    except FileNotFoundError:
        raise StorageError(
            f"storage_path: {path} can't be made, because {Path(path).parent} doesn't exist"
        ) from None
    except FileExistsError:
        raise StorageError(f"storage_path: {path} is a file; give a directory") from None
    except OSError as error:
        raise StorageError(f"storage_path: {path} can't be made: {error.strerror}") from error
