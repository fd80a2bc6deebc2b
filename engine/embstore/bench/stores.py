"""The stores that the tiers suite compares: variables of storage types, and key-value stores."""

from __future__ import annotations

import mmap
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.bench._yardsticks import LevelDbStore
from embstore.bench.contenders import (
    INITIAL_ACCUMULATOR,
    KEYS_PER_LOAD,
    LEARNING_RATE,
    Contender,
    Embstore,
    Ids,
    Ranks,
    Rows,
    row_bytes,
    split_into_loads,
)
from embstore.errors import StorageError
from embstore.options import TIER_KINDS, TierKind

YARDSTICK = es.StorageType.DRAM.name


@dataclass(frozen=True)
class Sizes:
    """The sizes of a variable's tiers in rows; a last tier in files is unlimited."""

    rows: int
    first_tier_rows: int
    second_of_three_rows: int
    dim: int

    @property
    def row_floats(self) -> int:
        return self.row_bytes // 4

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.dim)


@dataclass(frozen=True)
class KeyBatch:
    """A batch, prepared for a key-value store."""

    keys: Ids  # distinct, ascending
    encoded: Sequence[bytes]  # the keys as bytes; empty if the store takes numbers
    positions: NDArray[np.intp]  # of each id's key in `keys`
    by_key: NDArray[np.intp]  # positions in the batch, grouped by key
    key_starts: NDArray[np.intp]  # where each key's positions begin in `by_key`


class KeyValueStore(Contender):
    """A store of whole rows. A step reads each key once, sums gradients, writes each key once."""

    takes_bytes = True

    def __init__(self, keys: Ids, sizes: Sizes) -> None:
        self._keys = keys
        self._dim = sizes.dim

    @abstractmethod
    def read(self, batch: KeyBatch) -> Rows:
        """Returns the rows, (keys, 2 * dim); the array may be read-only."""

    @abstractmethod
    def write(self, batch: KeyBatch, rows: Rows) -> None: ...

    def load(self, max_keys: int = KEYS_PER_LOAD) -> None:
        for part in split_into_loads(self._keys, max_keys):
            rows = np.ones((part.size, 2 * self._dim), np.float32)
            rows[:, self._dim :] = INITIAL_ACCUMULATOR
            self.write(self.batch_of(part), rows)

    def ids_of(self, ranks: Ranks) -> KeyBatch:
        return self.batch_of(self._keys[ranks])

    def batch_of(self, ids: Ids) -> KeyBatch:
        keys, positions = np.unique(ids, return_inverse=True)
        by_key = np.argsort(positions, kind="stable")
        return KeyBatch(
            keys=keys,
            encoded=_encode(keys) if self.takes_bytes else (),
            positions=positions,
            by_key=by_key,
            key_starts=np.searchsorted(positions[by_key], np.arange(keys.size)),
        )

    def lookup(self, ids: KeyBatch, out: Rows) -> Rows:
        self._gather(self.read(ids), ids, out)
        return out

    def train(self, ids: KeyBatch, out: Rows, grads: Rows) -> None:
        rows = self.read(ids)
        self._gather(rows, ids, out)
        sums = np.add.reduceat(grads[ids.by_key], ids.key_starts)
        accumulators = rows[:, self._dim :] + sums * sums
        weights = rows[:, : self._dim] - LEARNING_RATE * sums / np.sqrt(accumulators)
        self.write(ids, np.hstack([weights, accumulators]))

    def _gather(self, rows: Rows, batch: KeyBatch, out: Rows) -> None:
        np.take(rows[:, : self._dim], batch.positions, axis=0, out=out, mode="clip")


class LevelDb(KeyValueStore):
    """LevelDB, called from C++ through its C interface: no Python code per row."""

    name = "LevelDB"
    takes_bytes = False

    def __init__(self, keys: Ids, sizes: Sizes, directory: Path) -> None:
        super().__init__(keys, sizes)
        self._store = LevelDbStore(str(directory / "leveldb"), 2 * sizes.dim)

    def read(self, batch: KeyBatch) -> Rows:
        rows = np.empty((batch.keys.size, 2 * self._dim), np.float32)
        self._store.read(batch.keys, rows)
        return rows

    def write(self, batch: KeyBatch, rows: Rows) -> None:
        self._store.write(batch.keys, rows)

    def close(self) -> None:
        self._store.close()


class RocksDb(KeyValueStore):
    """RocksDB through rocksdict, with MultiGet and write batches without the log; it makes Python
    objects for each row.
    """

    name = "RocksDB"

    def __init__(self, keys: Ids, sizes: Sizes, directory: Path) -> None:
        super().__init__(keys, sizes)
        import rocksdict

        self._module = rocksdict
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, block_based=False)
        # As large as the first tier of the variables.
        table.set_block_cache(rocksdict.Cache(sizes.first_tier_rows * sizes.row_bytes))
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        self._unlogged = rocksdict.WriteOptions()
        # A property, but a method in rocksdict's stubs.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        with _named("RocksDB"):
            self._database: Any = rocksdict.Rdict(str(directory / "rocksdb"), options)

    def read(self, batch: KeyBatch) -> Rows:
        with _named("RocksDB"):
            found = self._database.get(list(batch.encoded))
        return _rows(found, self._dim)

    def write(self, batch: KeyBatch, rows: Rows) -> None:
        writes = self._module.WriteBatch(raw_mode=True)
        for key, value in zip(batch.encoded, _values(rows), strict=True):
            writes.put(key, value)
        with _named("RocksDB"):
            self._database.write(writes, self._unlogged)

    def close(self) -> None:
        self._database.close()


class Lmdb(KeyValueStore):
    """LMDB, with multi-gets and multi-puts in one transaction per batch, which is never synced; its
    cache is the page cache.

    LMDB writes into a mapping of its sparse file, so a full disk would kill the process by SIGBUS.
    Therefore each write first checks that there is room.
    """

    name = "LMDB"

    def __init__(self, keys: Ids, sizes: Sizes, directory: Path) -> None:
        super().__init__(keys, sizes)
        import lmdb

        self._directory = directory
        # Per written row: a transaction copies the leaf that the row is on, and may split it. The
        # total is at most the table and a copy of it in half-empty pages.
        self._written_bytes = 2 * mmap.PAGESIZE + sizes.row_bytes
        self._most_written_bytes = (1 << 20) + 4 * sizes.rows * (sizes.row_bytes + 64)
        # Address space, not memory: room for half-empty pages and the copies of transactions.
        map_bytes = (1 << 30) + 8 * sizes.rows * (sizes.row_bytes + 64)
        self._database = lmdb.open(
            str(directory / "lmdb"),
            map_size=map_bytes,
            sync=False,
            metasync=False,
            writemap=True,
            readahead=False,
        )

    def read(self, batch: KeyBatch) -> Rows:
        with self._database.begin() as transaction, transaction.cursor() as cursor:
            return _rows((value for _, value in cursor.getmulti(batch.encoded)), self._dim)

    def write(self, batch: KeyBatch, rows: Rows) -> None:
        self._check_room(batch.keys.size)
        with (
            _named("LMDB"),
            self._database.begin(write=True) as transaction,
            transaction.cursor() as cursor,
        ):
            cursor.putmulti(zip(batch.encoded, _values(rows), strict=True))

    def _check_room(self, row_count: int) -> None:
        file_system = os.statvfs(self._directory)
        left_bytes = file_system.f_bavail * file_system.f_frsize
        needed_bytes = min(row_count * self._written_bytes, self._most_written_bytes)
        if left_bytes < needed_bytes:
            raise StorageError(
                f"LMDB: {self._directory} has {left_bytes} bytes left, and a batch may write "
                f"{needed_bytes}; free some, or give another folder with --path"
            )

    def close(self) -> None:
        self._database.close()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Raises any error in the scope as StorageError with the store's name: RocksDB's errors have no
    type of their own.
    """
    try:
        yield
    except Exception as error:
        raise StorageError(f"{name}: {error}") from error


_KEY_VALUE_STORES: dict[str, type[LevelDb] | type[RocksDb] | type[Lmdb]] = {
    kind.name: kind for kind in (LevelDb, RocksDb, Lmdb)
}
# These two names mean the same tiers as a longer name, which is measured. HBM is in the gpu suite.
_SAME_TIERS = {es.StorageType.SSDHASH, es.StorageType.LEVELDB}
STORE_NAMES: tuple[str, ...] = (
    *(
        kind.name
        for kind, tiers in TIER_KINDS.items()
        if kind not in _SAME_TIERS and TierKind.HBM not in tiers
    ),
    *_KEY_VALUE_STORES,
)


def moves_rows(name: str) -> bool:
    """Returns whether the store is a variable whose rows move between tiers."""
    return tier_count(name) > 1


def tier_count(name: str) -> int:
    """Returns the number of tiers of a storage type; 1 for a key-value store."""
    return 1 if name in _KEY_VALUE_STORES else len(TIER_KINDS[es.StorageType[name]])


class UnavailableError(Exception):
    """This computer lacks a library or a medium that a store needs; the message names it."""


def open_store(name: str, keys: Ids, sizes: Sizes, directory: Path) -> Contender:
    """Opens a store, which isn't loaded yet. Raises UnavailableError."""
    if name not in _KEY_VALUE_STORES:
        return open_variable(es.StorageType[name], keys, sizes, directory)
    try:
        return _KEY_VALUE_STORES[name](keys, sizes, directory)
    except ImportError as error:
        raise UnavailableError(str(error)) from error


def open_variable(
    storage_type: es.StorageType, keys: Ids, sizes: Sizes, directory: Path
) -> Embstore:
    """Opens a variable, which isn't loaded yet. Raises UnavailableError."""
    tiers = TIER_KINDS[storage_type]
    tier_rows = [sizes.rows]
    if len(tiers) > 1:
        tier_rows = [sizes.first_tier_rows]
    if len(tiers) == 3:
        tier_rows.append(sizes.second_of_three_rows)
    if len(tiers) == 2 and tiers[-1] is TierKind.PMEM:
        tier_rows.append(sizes.rows)
    needs_path = any(kind not in (TierKind.DRAM, TierKind.PMEM_MEMKIND) for kind in tiers)
    storage_option = es.StorageOption(
        storage_type=storage_type,
        storage_path=directory if needs_path else None,
        storage_size=[rows * sizes.row_bytes for rows in tier_rows],
    )
    try:
        return Embstore(keys, sizes.dim, storage_option)
    except (es.errors.MissingLibraryError, es.errors.MissingDeviceError) as error:
        raise UnavailableError(str(error)) from error


def _encode(keys: Ids) -> list[bytes]:
    """Returns the keys as eight bytes each, in an encoding that keeps their order."""
    text = (keys.view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8").tobytes()
    return [text[i : i + 8] for i in range(0, len(text), 8)]


def _values(rows: Rows) -> Iterator[bytes]:
    text, size = rows.tobytes(), rows.shape[1] * rows.itemsize
    return (text[i : i + size] for i in range(0, len(text), size))


def _rows(values: Iterable[bytes | None], dim: int) -> Rows:
    # join() raises TypeError for a key without a value (None).
    return np.frombuffer(b"".join(values), np.float32).reshape(-1, 2 * dim)  # type: ignore[arg-type]
