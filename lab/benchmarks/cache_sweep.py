"""One table with several sizes of DRAM in front of its persistent memory, in both modes of use.

*App direct*: the engine keeps the most frequent rows in a first tier of DRAM; the ids that it finds
there are counted, for each size of that tier. *Memory mode*: all rows lie in one memory, which has
the same size of DRAM as a cache of lines. The speed of both is predicted from a recording of the
engine's accesses to rows (see `pmemlab.model.prediction`).

Ids have the paper's skew (see `synthetic`). For the table in one memory, rows are inserted in
random order, so that frequent rows lie among others, as with keys in the order of their first use.
In tiers they are inserted by frequency, the order that long training produces.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.model.devices.memory_mode import MemoryModeDevice
from pmemlab.model.planning.row_bytes import RowShape
from pmemlab.model.prediction import RanIn, caches_before, predict_run
from pmemlab.report.documents import FirstTier
from pmemlab.workloads.placements import Placement
from pmemlab.workloads.predicting import MAX_PHASES
from pmemlab.workloads.synthetic import draw_ranks

__all__ = ["TableShape", "sweep"]

_FILLED_AT_ONCE: Final = 50_000
_SEED: Final = 2021

Keys = NDArray[np.int64]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TableShape:
    """The table and its training. rows: each of `dim` floats and as many optimizer floats.
    batch_size: ids per batch. steps: counted steps; warm_up_steps: steps before them.
    """

    rows: int
    dim: int
    batch_size: int
    steps: int
    warm_up_steps: int

    @property
    def row_bytes(self) -> int:
        return RowShape(self.dim, slots=1).row_bytes  # Adagrad's sums beside the weights

    @property
    def ids(self) -> int:
        return self.batch_size * self.steps


@dataclass(frozen=True)
class _Recorded:
    """A recording of the counted steps and of the moves that they caused. phases_of_steps: the
    phases before the last step ended. hit_rate: share of the ids found in the first tier.
    """

    phases: NDArray[np.void]
    phases_of_steps: NDArray[np.void]
    caches: Sequence[es.Caches]
    recorded_run: RanIn
    hit_rate: float


def sweep(
    shape: TableShape,
    shares: Sequence[float],
    device: MemoryModeDevice,
    folder: Path,
    progress: Progress = lambda _what: None,
) -> list[FirstTier]:
    """Train a table with DRAM for each share of its rows, ascending, and predict both modes.

    device: the DRAM and persistent memory to predict on; memory mode's cache gets the size of each
    share. folder: folder for this run's persistent memory.

    Raises EmbStoreError for an error of the engine, LabError if a device can't do the run's
    accesses.
    """
    sizes = {share: max(1, round(share * shape.rows)) * shape.row_bytes for share in sorted(shares)}
    behind_dram = {
        share: MemoryModeDevice(
            replace(device.file, cache=replace(device.file.cache, size_bytes=size)),
            device.dram,
            device.pmem,
        )
        for share, size in sizes.items()
        if size > device.cpu_cache_bytes
    }
    app_direct: Placement = (device.dram, device.pmem)
    # The same caches in all runs, since simulating them slows a run.
    caches = caches_before([app_direct, *((cached,) for cached in behind_dram.values())])
    in_one_memory: _Recorded | None = None
    if behind_dram:
        progress("all rows in one memory")
        in_one_memory = _run(shape, None, folder, caches)
    found: list[FirstTier] = []
    for share, size in sizes.items():
        progress(f"DRAM for {share:.2%} of the rows")
        tiered = _run(shape, size, folder, caches)
        result = FirstTier(share, size, tiered.hit_rate)
        if in_one_memory is not None and share in behind_dram:
            cached = behind_dram[share]
            result = replace(
                result,
                app_direct_memory_ns=_memory_ns(shape, tiered, app_direct),
                memory_mode_memory_ns=_memory_ns(shape, in_one_memory, (cached,)),
                app_direct_ids_per_s=_ids_per_s(shape, tiered, app_direct),
                memory_mode_ids_per_s=_ids_per_s(shape, in_one_memory, (cached,)),
                memory_mode_hit_rate=_hit_rate(shape, in_one_memory, cached),
            )
        found.append(result)
    return found


def _run(
    shape: TableShape,
    first_tier_bytes: int | None,
    folder: Path,
    caches: Sequence[es.Caches],
) -> _Recorded:
    """Fill a table and train it, recorded. first_tier_bytes: None for one memory."""
    random = np.random.default_rng(_SEED)
    gradients = np.full((shape.batch_size, shape.dim), 1e-3, np.float32)
    keys = np.arange(shape.rows - 1, -1, -1, dtype=np.int64)  # by frequency, the most frequent last
    if first_tier_bytes is None:
        keys = random.permutation(keys)

    def step() -> None:
        drawn = draw_ranks(random.random(shape.batch_size), shape.rows)
        table.lookup(drawn, train=True)
        table.apply_gradients(drawn, gradients)

    with _table(shape, first_tier_bytes, folder) as table:
        # Record from the first row on, so that the simulated caches are warm in the counted steps.
        with es.record_accesses(table, caches=caches, max_phases=MAX_PHASES) as recording:
            for start in range(0, shape.rows, _FILLED_AT_ONCE):
                part = keys[start : start + _FILLED_AT_ONCE]
                table.apply_gradients(part, np.zeros((part.size, shape.dim), np.float32))
            table.drain()
            for _ in range(shape.warm_up_steps):
                step()
            table.drain()
            before = table.stats()
            from_ns = recording.elapsed_ns()
            for _ in range(shape.steps):
                step()
            until_ns = recording.elapsed_ns()
            table.drain()  # the number of pending moves depends on this computer's load
        after = table.stats()
    hits, misses = (after[name] - before[name] for name in ("hits", "misses"))
    phases = recording.phases[recording.phases["start_ns"] >= from_ns]
    return _Recorded(
        phases,
        phases[phases["start_ns"] < until_ns],
        caches,
        RanIn((until_ns - from_ns) / 1e9, threading.get_native_id()),
        hits / (hits + misses),
    )


@contextmanager
def _table(
    shape: TableShape, first_tier_bytes: int | None, folder: Path
) -> Iterator[es.EmbeddingVariable]:
    with tempfile.TemporaryDirectory(dir=folder, prefix="pmemlab-cache-sizes-") as path:
        if first_tier_bytes is None:
            storage = es.StorageOption(es.StorageType.DRAM)
        else:
            # All rows fit below, and an eighth more, as the engine keeps some room.
            below_bytes = shape.rows * (shape.row_bytes + 64) * 9 // 8 + (1 << 20)
            storage = es.StorageOption(
                es.StorageType.DRAM_PMEM, path, [first_tier_bytes, below_bytes]
            )
        with es.get_embedding_variable(
            "table",
            shape.dim,
            optimizer=es.optimizers.Adagrad(0.01),
            ev_option=es.EmbeddingVariableOption(storage_option=storage),
        ) as table:
            yield table


def _ids_per_s(shape: TableShape, recorded: _Recorded, placement: Placement) -> float:
    run = predict_run(recorded.phases_of_steps, recorded.caches, placement, recorded.recorded_run)
    return shape.ids / run.seconds


def _memory_ns(shape: TableShape, recorded: _Recorded, placement: Placement) -> float:
    """Returns the time of all threads' accesses, moves included, per id."""
    total_ns = 0.0
    for tier, device in enumerate(placement):
        assert device is not None
        phases = recorded.phases[recorded.phases["tier"] == tier]
        cache = recorded.caches.index(es.Caches.of(device))
        total_ns += float(es.phase_times_ns(device, phases, cache=cache).sum())
    return total_ns / shape.ids


def _hit_rate(shape: TableShape, recorded: _Recorded, device: MemoryModeDevice) -> float:
    """Returns the share of ids whose row was in a cache, the CPU's or the DRAM cache. A batch's
    duplicate of an id counts as a hit.
    """
    cache = recorded.caches.index(es.Caches.of(device))
    misses = sum(
        float(recorded.phases[name][:, cache].sum()) for name in ("clean_misses", "dirty_misses")
    )
    return 1 - misses / shape.ids
