"""What is compared: each keeps `rows` rows, reads batches of them, and trains on batches."""

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
from embstore.variable import EmbeddingVariable

LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1
KEYS_A_LOAD = 100_000
COLUMNS = 26  # categorical ones, of a sample

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


class Contender(Protocol):
    """Ranks 0..rows-1 stand for keys; a contender maps them to keys of its own beforehand."""

    name: str
    trains_in_threads: bool  # whether two threads may train one table at a time
    least_batch_size: int  # smaller ones say nothing of it

    def ids_of(self, ranks: Ids) -> object: ...
    def lookup(self, ids: object, out: Rows) -> object:
        """The rows, in `out` or in an array of its own."""

    def train(self, ids: object, out: Rows, grads: Rows) -> None:
        """A lookup, then one Adagrad step with `grads`."""

    def close(self) -> None: ...


def loads_of(keys: Ids) -> list[Ids]:
    """The keys in parts that are loaded at once."""
    return np.array_split(keys, max(1, keys.size // KEYS_A_LOAD))


def scrambled_keys(rows: int, seed: int) -> Ids:
    """`rows` distinct int64 keys in no order: what hashed categorical values look like."""
    random = np.random.default_rng(seed)
    keys = np.unique(random.integers(-(2**63), 2**63 - 1, size=rows + rows // 8, dtype=np.int64))
    return random.permutation(keys)[:rows]


def dense_keys(rows: int, seed: int) -> Ids:
    """0 to `rows` - 1 in no order: what numbers of a vocabulary look like."""
    return np.random.default_rng(seed).permutation(rows)


KEYS = {"hashed": scrambled_keys, "dense": dense_keys}


def row_bytes(dim: int) -> int:
    """Of a row with Adagrad's accumulators, padded as a row of the engine is."""
    return 2 * 4 * ((dim + 3) // 4 * 4)


def adagrad() -> es.optimizers.Adagrad:
    return es.optimizers.Adagrad(
        learning_rate=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
    )


def torch_adagrad(embedding: Any) -> Any:
    """The same, for the weights of a module of PyTorch."""
    import torch

    # Its default, chosen aloud: else it warns.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    return torch.optim.Adagrad(
        embedding.parameters(), lr=LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
    )


def _filled_variable(name: str, keys: Ids, dim: int) -> EmbeddingVariable:
    """With a row for each key, and room for no more. Calls are one thread's from now on."""
    es.set_num_threads(1)
    variable = es.get_embedding_variable(
        name,
        embedding_dim=dim,
        initializer=es.initializers.Ones(),
        optimizer=adagrad(),
        ev_option=es.EmbeddingVariableOption(
            storage_option=es.StorageOption(storage_size=[max(1, keys.size) * row_bytes(dim)])
        ),
    )
    for part in loads_of(keys):
        variable.apply_gradients(part, np.zeros((part.size, dim), np.float32))
    return variable


class Embstore:
    name = "embstore"
    trains_in_threads = True
    least_batch_size = 1

    def __init__(self, keys: Ids, dim: int) -> None:
        self._keys = keys
        self._variable = _filled_variable("bench", keys, dim)

    def ids_of(self, ranks: Ids) -> Ids:
        return self._keys[ranks]

    def lookup(self, ids: object, out: Rows) -> Rows:
        self._variable.lookup(ids, out=out)  # type: ignore[call-overload]
        return out

    def train(self, ids: object, out: Rows, grads: Rows) -> None:
        self._variable.lookup(ids, train=True, out=out)  # type: ignore[call-overload]
        self._variable.apply_gradients(ids, grads)  # type: ignore[arg-type]

    def set_num_threads(self, count: int) -> None:
        es.set_num_threads(count)

    def close(self) -> None:
        self._variable.close()


@dataclass(frozen=True)
class ColumnsBatch:
    """A batch's ids by columns, and where in the batch's gradients those of each column are."""

    ids: list[Ids]
    grads: list[slice]


class Columns:
    """A variable a categorical column, all of them in one call. Rank r lies in column r mod 26."""

    name = "embstore, 26 variables"
    trains_in_threads = True
    least_batch_size = COLUMNS

    def __init__(self, keys: Ids, dim: int) -> None:
        self._keys = keys
        self._variables = [
            _filled_variable(f"column{i}", keys[i::COLUMNS], dim) for i in range(COLUMNS)
        ]

    def ids_of(self, ranks: Ids) -> object:
        parts = [ranks[ranks % COLUMNS == column] for column in range(COLUMNS)]
        ends = np.cumsum([0, *(part.size for part in parts)])
        return ColumnsBatch(
            [self._keys[part] for part in parts],
            [slice(begin, end) for begin, end in pairwise(ends.tolist())],
        )

    def lookup(self, ids: object, out: Rows) -> list[Rows]:  # noqa: ARG002 - it has its own
        assert isinstance(ids, ColumnsBatch)
        return es.lookup_many(self._variables, ids.ids)

    def train(self, ids: object, out: Rows, grads: Rows) -> None:  # noqa: ARG002 - it has its own
        assert isinstance(ids, ColumnsBatch)
        es.lookup_many(self._variables, ids.ids, train=True)
        es.apply_many(self._variables, ids.ids, [grads[own] for own in ids.grads])

    def set_num_threads(self, count: int) -> None:
        es.set_num_threads(count)

    def close(self) -> None:
        for variable in self._variables:
            variable.close()


class HandWritten:
    """The loop that one would write for exactly this; see engine/bench/."""

    name = "hand-written loop"
    trains_in_threads = False  # it has no locks
    least_batch_size = 1

    def __init__(self, keys: Ids, dim: int) -> None:
        self._keys = keys
        self._table = HandWrittenTable(keys.size, dim)
        for part in loads_of(keys):
            self._table.insert(part, np.ones((part.size, dim), np.float32))

    def ids_of(self, ranks: Ids) -> Ids:
        return self._keys[ranks]

    def lookup(self, ids: object, out: Rows) -> Rows:
        self._table.lookup(ids, out)  # type: ignore[arg-type]
        return out

    def train(self, ids: object, out: Rows, grads: Rows) -> None:
        self._table.lookup(ids, out)  # type: ignore[arg-type]
        self._table.adagrad(ids, grads, LEARNING_RATE)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


class TorchSparse:
    """nn.Embedding(sparse=True) with torch.optim.Adagrad: dense ids, no hashing."""

    name = "PyTorch"
    trains_in_threads = False  # an optimizer belongs to one thread
    least_batch_size = 1

    def __init__(self, keys: Ids, dim: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._embedding = torch.nn.Embedding(keys.size, dim, sparse=True)
        torch.nn.init.ones_(self._embedding.weight)
        self._optimizer = torch_adagrad(self._embedding)
        # Rows in no order of popularity, as everywhere else.
        self._places = np.random.default_rng(0).permutation(keys.size)

    def ids_of(self, ranks: Ids) -> object:
        return self._torch.from_numpy(self._places[ranks])

    def lookup(self, ids: object, out: Rows) -> Rows:
        with self._torch.no_grad():
            self._torch.index_select(
                self._embedding.weight,
                0,
                ids,  # type: ignore[arg-type]
                out=self._torch.from_numpy(out),
            )
        return out

    def train(self, ids: object, out: Rows, grads: Rows) -> None:  # noqa: ARG002 - autograd's own
        self._optimizer.zero_grad()
        self._embedding(ids).backward(self._torch.from_numpy(grads))
        self._optimizer.step()

    def set_num_threads(self, count: int) -> None:
        self._torch.set_num_threads(count)

    def close(self) -> None:
        pass


class SharedCalls:
    """Another contender, whose calls are shared by as many threads as there are processors."""

    trains_in_threads = False  # one caller has all processors
    least_batch_size = 8192  # smaller ones aren't worth a thread's waking

    def __init__(self, of: Embstore | Columns | TorchSparse) -> None:
        self._of = of
        self._threads = len(os.sched_getaffinity(0))
        self.name = f"{of.name}, calls shared by {self._threads} threads"

    def ids_of(self, ranks: Ids) -> object:
        return self._of.ids_of(ranks)

    @contextmanager
    def _shared(self) -> Iterator[None]:
        self._of.set_num_threads(self._threads)
        try:
            yield
        finally:
            self._of.set_num_threads(1)

    def lookup(self, ids: object, out: Rows) -> object:
        with self._shared():
            return self._of.lookup(ids, out)

    def train(self, ids: object, out: Rows, grads: Rows) -> None:
        with self._shared():
            self._of.train(ids, out, grads)

    def close(self) -> None:
        pass
