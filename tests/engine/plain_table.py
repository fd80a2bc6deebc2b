"""A model of an embedding variable in a dict and NumPy, so that results can be compared bit for
bit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from plain_partition import partition_of
from plain_rules import F32, Row, Step, update_of

import embstore as es


class PlainStoreFullError(Exception):
    """Raised, before anything changes, if a batch's new rows have no room."""


@dataclass
class PlainRow:
    w: Row
    slots: list[Row]
    freq: int = 0
    version: int = -1
    served: int = 0  # occurrences in serving look-ups
    last_access: int = 0


class PlainTable:
    """A table with the calls of EmbeddingVariable, on ids of shape (n,).

    capacities: rows that each tier of a partition may hold, first tier first; None: unlimited.
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
        self.learning_rate: float = optimizer.params()["learning_rate"]
        self.capacities = capacities
        self._strategy = cache_strategy
        self.partition_num = partition_num
        self._rows: dict[int, PlainRow] = {}
        self._applies = 0
        self._updates = 0  # applies that weren't left out
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
        self._updates += 1
        sums: dict[int, Row] = {}
        for key, grad in zip(ids, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, grad in sums.items():
            if key not in self._rows:
                self._rows[key] = self._new_row(key)
            row = self._rows[key]
            self._update(row.w, row.slots, grad, Step(self._updates, step, self.learning_rate))
            row.version = step
        for key in ids:
            self._now += 1
            self._rows[key].freq += 1
            self._rows[key].last_access = self._now

    def count_skipped_apply(self) -> None:
        """Counts an apply that changes nothing else."""
        self._applies += 1

    def put(self, ids: list[int], values: Row, version: int) -> None:
        """Sets the rows of unique ids, partition by partition: each as a whole or not at all."""
        given = dict(zip(ids, values, strict=True))
        for _, keys in sorted(self._by_partition(ids).items()):
            self._check_room(keys)
            for key in keys:
                self._now += 1
                row = self._rows.setdefault(key, self._new_row(key))
                row.w[:] = given[key]
                row.freq += 1
                row.version = version
                row.last_access = self._now

    def remove(self, ids: list[int]) -> int:
        return sum(self._rows.pop(key, None) is not None for key in ids)

    def evict(self, step: int, option: es.GlobalStepEvict | es.L2WeightEvict | None) -> int:
        def goes(row: PlainRow) -> bool:
            if isinstance(option, es.GlobalStepEvict):
                assert option.steps_to_live is not None
                return step - row.version > option.steps_to_live
            if option is None:
                return False
            return 0.5 * float((row.w.astype(np.float64) ** 2).sum()) < option.l2_weight_threshold

        return self.remove([key for key, row in self._rows.items() if goes(row)])

    def _new_row(self, key: int) -> PlainRow:
        slots = [np.full(self.dim, value, F32) for value in self._slot_values]
        return PlainRow(self._initial_row(key).copy(), slots)

    def _check_room(self, ids: list[int]) -> None:
        if None in self.capacities:
            return
        room = sum(capacity or 0 for capacity in self.capacities)
        for keys in self._by_partition({*self._rows, *ids}).values():
            if len(keys) > room:
                raise PlainStoreFullError

    def _by_partition(self, keys: Iterable[int]) -> dict[int, list[int]]:
        parts: dict[int, list[int]] = defaultdict(list)
        for key in keys:
            parts[partition_of(key, self.partition_num)].append(key)
        return parts

    def get_frequency(self, ids: list[int]) -> list[int]:
        return [self._rows[key].freq if key in self._rows else 0 for key in ids]

    def get_version(self, ids: list[int]) -> list[int]:
        return [self._rows[key].version if key in self._rows else -1 for key in ids]

    def lookup_tier(self, ids: list[int]) -> list[int]:
        """Returns the tier of each row once nothing moves: the first tier has the highest ranks."""
        tiers = {}
        for keys in self._by_partition(self._rows).values():
            ranked = iter(sorted(keys, key=self._rank, reverse=True))
            for tier, capacity in enumerate(self.capacities):
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
        return [tiers.count(tier) for tier in range(len(self.capacities))]

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
