"""What an embedding variable must do, in a dict and numpy: the float32 arithmetic of the core's
rules, operation by operation, so that results can be compared bit for bit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

import embstore as es

F32 = np.float32
Row = NDArray[np.float32]
Update = Callable[[Row, list[Row], Row, int], None]  # weights, slots, gradient, t from 1


def sgd(optimizer: es.optimizers.SGD) -> Update:
    rate = F32(optimizer.learning_rate)

    def update(w: Row, slots: list[Row], g: Row, t: int) -> None:
        del slots, t
        w -= rate * g

    return update


def adagrad(optimizer: es.optimizers.Adagrad) -> Update:
    rate = F32(optimizer.learning_rate)

    def update(w: Row, slots: list[Row], g: Row, t: int) -> None:
        del t
        (a,) = slots
        a += g * g
        w -= rate * g / np.sqrt(a)

    return update


def adam(optimizer: es.optimizers.Adam) -> Update:
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    powers = {0: (1.0, 1.0)}

    def update(w: Row, slots: list[Row], g: Row, t: int) -> None:
        for i in range(len(powers), t + 1):
            powers[i] = (powers[i - 1][0] * beta1, powers[i - 1][1] * beta2)
        power1, power2 = powers[t]
        step = F32(optimizer.learning_rate * math.sqrt(1.0 - power2) / (1.0 - power1))
        m, v = slots
        m += F32(1.0 - beta1) * (g - m)
        v += F32(1.0 - beta2) * (g * g - v)
        w -= step * m / (np.sqrt(v) + F32(optimizer.epsilon))

    return update


def ftrl(optimizer: es.optimizers.Ftrl) -> Update:
    assert optimizer.learning_rate_power == -0.5, "numpy's power may round unlike the C library's"
    rate = optimizer.learning_rate
    l1 = optimizer.l1_regularization_strength
    l2_term = F32(2.0 * optimizer.l2_regularization_strength * rate)

    def update(w: Row, slots: list[Row], g: Row, t: int) -> None:
        del t
        a, linear = slots
        raised = a + g * g
        linear += g - (np.sqrt(raised) - np.sqrt(a)) * F32(1.0 / rate) * w
        a[:] = raised
        norm = _norm(linear)
        if norm <= l1:
            w[:] = 0
        else:
            w[:] = F32((l1 / norm - 1.0) * rate) * linear / (np.sqrt(a) + l2_term)

    return update


def _norm(row: Row) -> float:
    lanes = [0.0] * 8  # the order in which the core sums, for any width of vector registers
    for i, value in enumerate(row.tolist()):
        lanes[i % 8] += value * value
    return math.sqrt(sum(lanes))


def update_of(optimizer: es.optimizers.Optimizer) -> tuple[Update, list[float]]:
    """The rule and its slots' initial values."""
    if isinstance(optimizer, es.optimizers.SGD):
        return sgd(optimizer), []
    if isinstance(optimizer, es.optimizers.Adagrad):
        return adagrad(optimizer), [optimizer.initial_accumulator_value]
    if isinstance(optimizer, es.optimizers.Adam):
        return adam(optimizer), [0.0, 0.0]
    assert isinstance(optimizer, es.optimizers.Ftrl)
    return ftrl(optimizer), [optimizer.initial_accumulator_value, 0.0]


class PlainStoreFullError(Exception):
    """The batch's new rows have no room; nothing was changed."""


@dataclass
class PlainRow:
    w: Row
    slots: list[Row]
    freq: int = 0
    version: int = -1
    served: int = 0  # occurrences in serving look-ups
    last_access: int = 0


class PlainTable:
    """The same calls as EmbeddingVariable, on ids of shape (n,).

    capacities: rows a tier of each partition, first tier first; None: any number.
    """

    def __init__(
        self,
        initial_rows: Row,
        optimizer: es.optimizers.Optimizer,
        *,
        capacities: Sequence[int | None] = (None,),
        cache_strategy: es.CacheStrategy = es.CacheStrategy.LFU,
        partition_num: int = 1,
    ) -> None:
        self._initial_rows = initial_rows
        self._update, self._slot_values = update_of(optimizer)
        self._slot_names = optimizer.slots
        self._capacities = capacities
        self._strategy = cache_strategy
        self._partitions = partition_num
        self._rows: dict[int, PlainRow] = {}
        self._applies = 0
        self._now = 0

    @property
    def dim(self) -> int:
        return int(self._initial_rows.shape[1])

    def _initial_row(self, key: int) -> Row:
        row: Row = self._initial_rows[key % len(self._initial_rows)]
        return row

    def lookup(self, ids: list[int], *, train: bool = False) -> Row:
        rows = [self._rows[key].w if key in self._rows else self._initial_row(key) for key in ids]
        if not train:
            for key in ids:
                self._now += 1
                if key in self._rows:
                    self._rows[key].served += 1
                    self._rows[key].last_access = self._now
        return np.array(rows, F32).reshape(len(ids), self.dim)

    def apply_gradients(self, ids: list[int], grads: Row, global_step: int | None) -> None:
        self._check_room(ids)
        step = self._applies if global_step is None else global_step
        self._applies += 1
        sums: dict[int, Row] = {}
        for key, grad in zip(ids, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, grad in sums.items():
            if key not in self._rows:
                slots = [np.full(self.dim, value, F32) for value in self._slot_values]
                self._rows[key] = PlainRow(self._initial_row(key).copy(), slots)
            row = self._rows[key]
            self._update(row.w, row.slots, grad, self._applies)
            row.version = step
        for key in ids:
            self._now += 1
            self._rows[key].freq += 1
            self._rows[key].last_access = self._now

    def _check_room(self, ids: list[int]) -> None:
        if None in self._capacities:
            return
        room = sum(capacity or 0 for capacity in self._capacities)
        for keys in self._by_partition({*self._rows, *ids}).values():
            if len(keys) > room:
                raise PlainStoreFullError

    def _by_partition(self, keys: Iterable[int]) -> dict[int, list[int]]:
        parts: dict[int, list[int]] = defaultdict(list)
        for key in keys:
            parts[key % self._partitions].append(key)
        return parts

    def get_frequency(self, ids: list[int]) -> list[int]:
        return [self._rows[key].freq if key in self._rows else 0 for key in ids]

    def get_version(self, ids: list[int]) -> list[int]:
        return [self._rows[key].version if key in self._rows else -1 for key in ids]

    def lookup_tier(self, ids: list[int]) -> list[int]:
        """Where rows lie when nothing moves any more: the highest ranks in the first tier."""
        tiers = {}
        for keys in self._by_partition(self._rows).values():
            ranked = iter(sorted(keys, key=self._rank, reverse=True))
            for tier, capacity in enumerate(self._capacities):
                for key in islice(ranked, capacity):
                    tiers[key] = tier
        return [tiers.get(key, -1) for key in ids]

    def _rank(self, key: int) -> tuple[int, int]:
        row = self._rows[key]
        count = row.freq + row.served if self._strategy is es.CacheStrategy.LFU else 0
        return count, row.last_access

    def total_count(self) -> tuple[int, int]:
        return len(self._rows), self.dim

    def rows_in_tiers(self) -> list[int]:
        tiers = self.lookup_tier(list(self._rows))
        return [tiers.count(tier) for tier in range(len(self._capacities))]

    def export(self) -> dict[str, NDArray[np.generic]]:
        rows = [self._rows[key] for key in sorted(self._rows)]
        return {
            "keys": np.array(sorted(self._rows), np.int64),
            "values": self._column([row.w for row in rows]),
            "freqs": np.array([row.freq for row in rows], np.int64),
            "versions": np.array([row.version for row in rows], np.int64),
            **{
                name: self._column([row.slots[i] for row in rows])
                for i, name in enumerate(self._slot_names)
            },
        }

    def _column(self, rows: list[Row]) -> Row:
        return np.array(rows, F32).reshape(len(rows), self.dim)
