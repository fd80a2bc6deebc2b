"""Contenders in DRAM: each has `rows` rows, reads batches of them, and trains on batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.bench._yardsticks import HandWrittenTable

LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1
KEYS_PER_LOAD = 100_000
COLUMNS = 26  # categorical columns of a sample

Ids = NDArray[np.int64]
Ranks = NDArray[np.int64] | NDArray[np.int32]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Counters:
    """A contender's counters; None: the contender doesn't report it."""

    hits: int | None = None
    misses: int | None = None
    index_bytes: int | None = None


class Contender(Protocol):
    """A table of rows of weights and Adagrad's accumulators, which works on batches.

    Ranks 0..rows-1 stand for keys. `ids_of` prepares a batch (the keys of its ranks; for key-value
    stores the bytes of its distinct keys) outside of the timing.
    """

    name: str
    trains_in_threads: bool = False  # whether two threads may train one table at a time
    min_batch_size: int = 1  # smaller batches aren't measured

    def load(self, max_keys: int = KEYS_PER_LOAD) -> None:
        """Gives every key a row of ones and initial accumulators, max_keys keys at a time."""
        del max_keys  # some contenders have all rows from the start

    def ids_of(self, ranks: Ranks) -> Any: ...

    def lookup(self, ids: Any, out: Rows) -> Any:
        """Returns the rows, in `out` or in an array of its own, as for serving: counts for the
        cache's ranking and promotes rows, if the contender has a cache.
        """

    def training_lookup(self, ids: Any, out: Rows) -> Any:
        """Returns the rows as for training: only reads."""
        return self.lookup(ids, out)

    def train(self, ids: Any, out: Rows, grads: Rows) -> None:
        """Does a training lookup, then one Adagrad step with `grads`."""

    def settle(self) -> None:
        """Returns when all pending moves of rows are done, if the contender can tell."""
        return

    def counters(self) -> Counters:
        return Counters()

    def close(self) -> None:
        """Frees memory and files."""
        return


def split_into_loads(keys: Ids, max_keys: int = KEYS_PER_LOAD) -> list[Ids]:
    """Returns the keys in parts of at most max_keys keys."""
    return np.array_split(keys, max(1, -(-keys.size // max_keys)))


def scrambled_keys(rows: int, seed: int) -> Ids:
    """Returns `rows` distinct int64 keys in random order, like hashed categorical values."""
    random = np.random.default_rng(seed)
    keys = np.unique(random.integers(-(2**63), 2**63 - 1, size=rows + rows // 8, dtype=np.int64))
    return random.permutation(keys)[:rows]


def dense_keys(rows: int, seed: int) -> Ids:
    """Returns 0 to `rows` - 1 in random order, like the numbers of a vocabulary."""
    return np.random.default_rng(seed).permutation(rows)


KEYS = {"hashed": scrambled_keys, "dense": dense_keys}


def row_bytes(dim: int) -> int:
    """Returns the bytes of a row with Adagrad's accumulators, padded as by the engine."""
    return 2 * 4 * ((dim + 3) // 4 * 4)


def adagrad() -> es.optimizers.Adagrad:
    return es.optimizers.Adagrad(
        learning_rate=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
    )


def torch_adagrad(embedding: Any) -> Any:
    """Returns PyTorch's optimizer with the same settings, for a module's weights."""
    import torch

    # Sets the default explicitly; otherwise PyTorch warns.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    return torch.optim.Adagrad(
        embedding.parameters(), lr=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
    )


class Embstore(Contender):
    """A variable of embstore, with one thread until `set_num_threads` is called.

    storage_option: None: in DRAM, with room for exactly the keys.
    """

    name = "embstore"
    trains_in_threads = True

    def __init__(
        self,
        keys: Ids,
        dim: int,
        storage_option: es.StorageOption | None = None,
        name: str = "bench",
    ) -> None:
        es.set_num_threads(1)
        if storage_option is None:
            # Room for more rows, as usual. A full table counts the new keys of each batch first.
            rows = max(4, keys.size) * 5 // 4
            storage_option = es.StorageOption(storage_size=[rows * row_bytes(dim)])
        self._keys = keys
        self.variable = es.get_embedding_variable(
            name,
            embedding_dim=dim,
            initializer=es.initializers.Ones(),
            optimizer=adagrad(),
            ev_option=es.EmbeddingVariableOption(storage_option=storage_option),
        )

    def load(self, max_keys: int = KEYS_PER_LOAD) -> None:
        for part in split_into_loads(self._keys, max_keys):
            self.variable.apply_gradients(part, np.zeros((part.size, self.variable.dim), "f4"))

    def ids_of(self, ranks: Ranks) -> Ids:
        return self._keys[ranks]

    def lookup(self, ids: Ids, out: Rows) -> Rows:
        return self.variable.lookup(ids, out=out)

    def training_lookup(self, ids: Ids, out: Rows) -> Rows:
        return self.variable.lookup(ids, train=True, out=out)

    def train(self, ids: Ids, out: Rows, grads: Rows) -> None:
        self.variable.lookup(ids, train=True, out=out)
        self.variable.apply_gradients(ids, grads)

    def settle(self) -> None:
        self.variable.drain()

    def counters(self) -> Counters:
        stats = self.variable.stats()
        return Counters(stats["hits"], stats["misses"], stats["index_bytes"])

    def set_num_threads(self, count: int) -> None:
        es.set_num_threads(count)

    def close(self) -> None:
        self.variable.close()


@dataclass(frozen=True)
class ColumnsBatch:
    """A batch's ids by columns, and the slice of the batch's gradients for each column."""

    ids: list[Ids]
    grads: list[slice]


class Columns(Contender):
    """One variable for each categorical column, all in one call. Rank r is of column r mod 26."""

    name = "embstore, 26 variables"
    trains_in_threads = True
    min_batch_size = COLUMNS

    def __init__(self, keys: Ids, dim: int) -> None:
        self._keys = keys
        self._columns = [Embstore(keys[i::COLUMNS], dim, name=f"column{i}") for i in range(COLUMNS)]
        self._variables = [column.variable for column in self._columns]

    def load(self, max_keys: int = KEYS_PER_LOAD) -> None:
        for column in self._columns:
            column.load(max_keys)

    def ids_of(self, ranks: Ranks) -> ColumnsBatch:
        parts = [ranks[ranks % COLUMNS == column] for column in range(COLUMNS)]
        ends = np.cumsum([0, *(part.size for part in parts)])
        return ColumnsBatch(
            [self._keys[part] for part in parts],
            [slice(begin, end) for begin, end in pairwise(ends.tolist())],
        )

    def lookup(self, ids: ColumnsBatch, out: Rows) -> list[Rows]:  # noqa: ARG002 - it has its own
        return es.lookup_many(self._variables, ids.ids)

    def train(self, ids: ColumnsBatch, out: Rows, grads: Rows) -> None:  # noqa: ARG002 - likewise
        es.lookup_many(self._variables, ids.ids, train=True)
        es.apply_many(self._variables, ids.ids, [grads[own] for own in ids.grads])

    def set_num_threads(self, count: int) -> None:
        es.set_num_threads(count)

    def close(self) -> None:
        for variable in self._variables:
            variable.close()


class HandWritten(Contender):
    """A loop written by hand for exactly this task, without locks; see engine/bench/."""

    name = "hand-written loop"

    def __init__(self, keys: Ids, dim: int) -> None:
        self._keys = keys
        self._dim = dim
        self._table = HandWrittenTable(keys.size, dim)

    def load(self, max_keys: int = KEYS_PER_LOAD) -> None:
        for part in split_into_loads(self._keys, max_keys):
            self._table.insert(part, np.ones((part.size, self._dim), np.float32))

    def ids_of(self, ranks: Ranks) -> Ids:
        return self._keys[ranks]

    def lookup(self, ids: Ids, out: Rows) -> Rows:
        self._table.lookup(ids, out)
        return out

    def train(self, ids: Ids, out: Rows, grads: Rows) -> None:
        self._table.lookup(ids, out)
        self._table.adagrad(ids, grads, LEARNING_RATE)


class TorchSparse(Contender):
    """nn.Embedding(sparse=True) with torch.optim.Adagrad, which only one thread may use; dense
    ids, no hashing.
    """

    name = "PyTorch"

    def __init__(self, keys: Ids, dim: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._embedding = torch.nn.Embedding(keys.size, dim, sparse=True)
        torch.nn.init.ones_(self._embedding.weight)
        self._optimizer = torch_adagrad(self._embedding)
        # Rows lie in random order of popularity, as for all contenders.
        self._places = np.random.default_rng(0).permutation(keys.size)

    def ids_of(self, ranks: Ranks) -> Any:
        return self._torch.from_numpy(self._places[ranks])

    def lookup(self, ids: Any, out: Rows) -> Rows:
        with self._torch.no_grad():
            out_here = self._torch.from_numpy(out)
            self._torch.index_select(self._embedding.weight, 0, ids, out=out_here)
        return out

    def train(self, ids: Any, out: Rows, grads: Rows) -> None:  # noqa: ARG002 - autograd's own
        self._optimizer.zero_grad()
        self._embedding(ids).backward(self._torch.from_numpy(grads))
        self._optimizer.step()

    def set_num_threads(self, count: int) -> None:
        self._torch.set_num_threads(count)


class SharedCalls(Contender):
    """Another contender with as many threads as processors, which share the calls of one caller."""

    min_batch_size = 8192  # for smaller batches no thread is woken

    def __init__(self, contender: Embstore | Columns | TorchSparse) -> None:
        self._contender = contender
        self._threads = len(os.sched_getaffinity(0))
        self.name = f"{contender.name}, calls shared by {self._threads} threads"

    def ids_of(self, ranks: Ranks) -> Any:
        return self._contender.ids_of(ranks)

    @contextmanager
    def _shared(self) -> Iterator[None]:
        self._contender.set_num_threads(self._threads)
        try:
            yield
        finally:
            self._contender.set_num_threads(1)

    def lookup(self, ids: Any, out: Rows) -> Any:
        with self._shared():
            return self._contender.lookup(ids, out)

    def train(self, ids: Any, out: Rows, grads: Rows) -> None:
        with self._shared():
            self._contender.train(ids, out, grads)
