"""How often pulled rows miss the cache and move, counted by the engine on a smaller table.

The engine trains a table that has one row for every `SCALE` rows of the paper's table, with the
paper's skew, and with as many rows in a step and in the cache, for its size. Whether a row is in
the cache depends on these ratios alone, so the shares are the large table's.

A cache that is smaller than the rows of a step evicts some of them before their update, as the
paper's algorithm 2 does.

Skew is the factor by which popularity falls more steeply. At 2, rows are twice as popular at half
the rank, as in the paper's "more skew" (2A exp(-2x/tau) for A exp(-x/tau)); 0.5 is its "less skew".
The total number of accesses stays. The paper's table II gives the share of accesses that the most
popular 0.05, 0.1 and 1 % of rows take. Its figure 11 needs the shares of fewer rows too: there the
share keeps the slope, in logarithms, of the table's first two points.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.errors import LabError
from pmemlab.model.planning.row_bytes import RowShape
from pmemlab.workloads.synthetic import ACCESS_SKEW, draw_ranks

__all__ = ["SCALE", "CacheAccesses", "TouchedRows", "count_cache_accesses", "count_touched_rows"]

SCALE: Final = 1000
_TOUCHED_SCALE: Final = 10_000  # a smaller table, as there are many more accesses to count
_DIM: Final = 4  # the width doesn't matter for counts
_SEED: Final = 11
_WARM_UP_ACCESSES: Final = 60  # per cached row
_COUNTED_ACCESSES: Final = 200_000
_HEAD_EXPONENT: Final = math.log(ACCESS_SKEW[1][1] / ACCESS_SKEW[0][1]) / math.log(
    ACCESS_SKEW[1][0] / ACCESS_SKEW[0][0]
)


@dataclass(frozen=True)
class CacheAccesses:
    """An LRU cache in steady state; each field is a share of the rows pulled.

    misses: rows that weren't in the cache. promotions: rows that came into it. demotions: rows
    that went out, and are written. late_updates: rows that left the cache between their pull and
    their update, so that the update must read and write them where they went.
    """

    misses: float
    promotions: float
    demotions: float
    late_updates: float


@dataclass(frozen=True)
class TouchedRows:
    """Points of the number of rows that accesses touch; both as shares of the table's rows."""

    accesses: tuple[float, ...]
    rows: tuple[float, ...]

    def share_touched_by(self, accesses: float) -> float:
        """Returns the share of rows that `accesses` (per row of the table) touch, interpolated on
        straight lines in logarithms.

        Raises ValueError beyond the last counted point.
        """
        if accesses > self.accesses[-1]:
            raise ValueError(f"{accesses:.1f} accesses a row; counted are {self.accesses[-1]:.1f}")
        if accesses < self.accesses[0]:
            return accesses * self.rows[0] / self.accesses[0]
        logs = np.interp(np.log(accesses), np.log(self.accesses), np.log(self.rows))
        return float(np.exp(logs))


def count_cache_accesses(
    rows: int, cached_rows: float, step_rows: float, skew: float = 1.0
) -> CacheAccesses:
    """Counts accesses of a table of `rows` whose cache holds `cached_rows`; a step pulls
    `step_rows`.

    Raises LabError if the scaled cache has no row, or as many as the table.
    """
    table_rows, cache = round(rows / SCALE), round(min(cached_rows, rows) / SCALE)
    if not 0 < cache < table_rows:
        raise LabError(
            f"--cache-gb: a cache of {cached_rows:,.9g} rows must hold {SCALE} at least, and fewer "
            f"than the table's {rows:,}"
        )
    draw = _KeyGenerator(table_rows, skew)
    step = max(1, round(step_rows / SCALE))
    with _cached_table(table_rows, cache) as table:
        for start in range(0, table_rows, 50_000):
            _train(table, np.arange(start, min(start + 50_000, table_rows), dtype=np.int64))
        for _ in range(math.ceil(_WARM_UP_ACCESSES * cache / step)):
            _train(table, draw(step))
        before = table.stats()
        late_updates = 0
        for _ in range(math.ceil(_COUNTED_ACCESSES / step)):
            keys = draw(step)
            _train(table, keys)
            # After its pulls, a least-recently-used cache holds no more rows of a step than fit.
            late_updates += max(0, len(np.unique(keys)) - cache)
        after = table.stats()
    counted = {
        name: after[name] - before[name] for name in ("hits", "misses", "promotions", "demotions")
    }
    accesses = counted["hits"] + counted["misses"]
    return CacheAccesses(
        misses=counted["misses"] / accesses,
        promotions=counted["promotions"] / accesses,
        demotions=counted["demotions"] / accesses,
        late_updates=late_updates / accesses,
    )


def count_touched_rows(rows: int, max_accesses: float, skew: float = 1.0) -> TouchedRows:
    """Counts how many rows a growing number of accesses touch, up to `max_accesses`, as the rows
    that an initially empty table has after them.
    """
    table_rows = round(rows / _TOUCHED_SCALE)
    draw = _KeyGenerator(table_rows, skew)
    points: list[tuple[float, float]] = []
    total, goal = 0, table_rows / 100
    with es.get_embedding_variable(
        "touched", embedding_dim=_DIM, optimizer=es.optimizers.SGD(learning_rate=0.0)
    ) as table:
        while not points or points[-1][0] < max_accesses / rows:
            while total < goal:
                size = min(50_000, math.ceil(goal - total))
                _train(table, draw(size))
                total += size
            points.append((total / table_rows, table.total_count()[0] / table_rows))
            goal *= 1.5
    accesses, touched = zip(*points, strict=True)
    return TouchedRows(accesses, touched)


class _KeyGenerator:
    """Draws keys by popularity; 0 is the most popular."""

    def __init__(self, rows: int, skew: float) -> None:
        if not 0.1 <= skew <= 10:
            raise LabError(f"--skew: must be between 0.1 and 10, not {skew}")
        self._rows = rows
        # With less skew, the keys' popularity is that of the first `rows` keys of a larger table.
        self._stretched_rows = round(rows / skew)
        self._share = _share_of_top(min(skew, 1.0))
        self._random = np.random.default_rng(_SEED)

    def __call__(self, size: int) -> NDArray[np.int64]:
        uniforms = self._random.random(size) * self._share
        ranks = draw_ranks(uniforms, self._stretched_rows, _HEAD_EXPONENT)
        return np.minimum(ranks, self._rows - 1)


def _share_of_top(share_of_keys: float) -> float:
    keys, accesses = np.log(np.array(ACCESS_SKEW)).T
    return float(np.exp(np.interp(np.log(share_of_keys), keys, accesses)))


@contextmanager
def _cached_table(rows: int, cached_rows: int) -> Iterator[es.EmbeddingVariable]:
    row_bytes = RowShape(_DIM, slots=0).row_bytes
    with tempfile.TemporaryDirectory() as folder:
        storage = es.StorageOption(
            storage_type=es.StorageType.DRAM_PMEM,
            storage_path=folder,
            storage_size=[cached_rows * row_bytes, 2 * rows * row_bytes],
            cache_strategy=es.CacheStrategy.LRU,
        )
        with es.get_embedding_variable(
            "cached",
            embedding_dim=_DIM,
            optimizer=es.optimizers.SGD(learning_rate=0.0),
            ev_option=es.EmbeddingVariableOption(storage_option=storage),
        ) as table:
            yield table


def _train(table: es.EmbeddingVariable, keys: NDArray[np.int64]) -> None:
    """Pulls, then updates rows, as a step does. Waits for moves, so that counts are repeatable."""
    table.lookup(keys, train=True)
    table.apply_gradients(keys, np.zeros((len(keys), _DIM), np.float32))
    table.drain()
