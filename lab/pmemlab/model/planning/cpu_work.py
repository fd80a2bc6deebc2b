"""Measures a look-up's CPU time without waits for memory, on this computer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import embstore as es
from embstore.optimizers import Optimizer
from pmemlab.model.planning.planned_tables import PlannedTable
from pmemlab.model.planning.popularity import Popularity
from pmemlab.model.planning.row_bytes import RowShape

__all__ = ["NS_PER_MOVED_ROW", "CpuWork", "measure_cpu_work", "measure_cpu_work_of_all"]

NS_PER_MOVED_ROW = 370.0
"""CPU time of a promotion with its demotion: engine/PERFORMANCE.md, "What is left" of "Tables
larger than their first tier". Measured with dim 16 on SSDHASH in the page cache, so it includes
some memory time.
"""

_CACHED_BYTES = 512 << 10  # fits a core's own cache
_BATCH_IDS = 4096
_SECONDS = 0.5


@dataclass(frozen=True)
class CpuWork:
    """The CPU's time. ns_per_lookup: per id looked up and, in training, applied. source: a
    description.
    """

    ns_per_lookup: float
    ns_per_moved_row: float
    source: str


def measure_cpu_work(
    dim: int, optimizer: Optimizer, popularity: Popularity, *, training: bool
) -> CpuWork:
    """Runs one thread on a table that fits this core's cache, for half a second; the best batch
    counts.

    popularity: its most popular rows are looked up.
    """
    rows = max(64, _CACHED_BYTES // RowShape(dim, len(optimizer.slots)).row_bytes)
    random = np.random.default_rng(1)
    p = popularity.head(rows).probabilities(1, rows)
    ids = random.choice(rows, _BATCH_IDS, p=p / p.sum()).astype(np.int64)
    gradients = np.full((_BATCH_IDS, dim), 1e-3, np.float32)
    best_ns = float("inf")
    with es.get_embedding_variable(
        "cpu-work", embedding_dim=dim, initializer=es.initializers.Ones(), optimizer=optimizer
    ) as variable:
        variable.apply_gradients(np.arange(rows), np.zeros((rows, dim), np.float32))
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            begin = time.perf_counter_ns()
            variable.lookup(ids, train=training)
            if training:
                variable.apply_gradients(ids, gradients)
            best_ns = min(best_ns, float(time.perf_counter_ns() - begin))
    operations = f"look-up and {optimizer.name}" if training else "look-up"
    return CpuWork(
        best_ns / _BATCH_IDS,
        NS_PER_MOVED_ROW,
        f"measured here: {operations} of {rows} rows of dim {dim} in this core's cache, one thread",
    )


def measure_cpu_work_of_all(
    tables: Sequence[PlannedTable], shares: Sequence[float], *, training: bool
) -> CpuWork:
    """Returns the mean per id. Each pair of dim and optimizer is measured once, on its first table,
    for half a second.

    shares: each table's share of the ids.
    """
    measured: dict[tuple[int, str], CpuWork] = {}
    mean_ns = 0.0
    for table, share in zip(tables, shares, strict=True):
        kind = (table.dim, table.optimizer.name)
        if kind not in measured:
            measured[kind] = measure_cpu_work(
                table.dim, table.optimizer, table.popularity, training=training
            )
        mean_ns += share * measured[kind].ns_per_lookup
    first = next(iter(measured.values()))
    if len(measured) == 1:
        return first
    return CpuWork(
        mean_ns,
        NS_PER_MOVED_ROW,
        f"measured here for each of {len(measured)} kinds of tables, one thread; the mean of an id",
    )
