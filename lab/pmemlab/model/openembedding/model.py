"""The model of an epoch's time on each engine, with and without checkpoints, and of recovery.
README.md gives the source of each term.

Training stops for a checkpoint. Dense weights are written to an SSD. For an incremental checkpoint,
one thread of each node copies each row that was touched since the last one to persistent memory: it
looks the row up, reads it, and writes it durably before the next. PMem-OE's own checkpoint needs no
copy: rows reach persistent memory as the cache changes, and what a checkpoint adds is hidden with
the rest of the cache's work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pmemlab.model.devices import load_device
from pmemlab.model.openembedding.accesses import CacheAccesses, TouchedRows
from pmemlab.model.openembedding.fit import FitInputs, StepFit, fit_step
from pmemlab.model.openembedding.memory_times import RowTimes, row_times
from pmemlab.model.openembedding.setup import Setup

__all__ = ["Engine", "EpochModel"]

_REFERENCE_GPUS = 4


class Engine(enum.Enum):
    """The paper's engines, which hold the rows. The values are the names in published.yaml."""

    DRAM_PS = "dram_ps"
    PMEM_HASH = "pmem_hash"
    ORI_CACHE = "ori_cache"
    PMEM_OE = "pmem_oe"

    @property
    def title(self) -> str:
        return {
            Engine.DRAM_PS: "DRAM-PS",
            Engine.PMEM_HASH: "PMem-Hash",
            Engine.ORI_CACHE: "Ori-Cache",
            Engine.PMEM_OE: "PMem-OE",
        }[self]

    @property
    def has_cache(self) -> bool:
        return self in (Engine.ORI_CACHE, Engine.PMEM_OE)


@dataclass(frozen=True)
class EpochModel:
    """The times of steps, epochs, checkpoints and recovery.

    fit: in steps of DRAM-PS on 4 GPUs. dram, pmem: access times of the servers' memories.
    """

    setup: Setup
    fit: StepFit
    dram: RowTimes
    pmem: RowTimes

    @staticmethod
    def from_setup(setup: Setup, inputs: FitInputs) -> EpochModel:
        """Makes the model with the servers' devices by their files. Raises LabError."""
        servers, row_bytes = setup.servers, setup.workload.row_bytes
        return EpochModel(
            setup,
            fit_step(inputs),
            dram=row_times(load_device(servers.dram_device), row_bytes, servers.threads),
            pmem=row_times(load_device(servers.pmem_device), row_bytes, servers.threads),
        )

    def step_ms(self, engine: Engine, gpus: int, accesses: CacheAccesses | None = None) -> float:
        """Returns the milliseconds of one step. accesses: the cache's, for engines with a cache."""
        unit_ms = self.setup.workload.step_ms / self.fit.dram_step(self.setup.workload.step_gpus)
        step = unit_ms * self.fit.dram_step(gpus)
        if engine is Engine.DRAM_PS:
            return step
        if engine is Engine.PMEM_HASH:
            return step + unit_ms * self.fit.hash_gpu * gpus
        if accesses is None:
            raise ValueError(f"{engine.title} has a cache: give its accesses")
        rows = self.setup.workload.gpu_accesses * gpus
        if engine is Engine.ORI_CACHE:
            return step + rows * self._cache_on_path_ns(accesses) / 1e6
        maintenance_ms = rows * self._maintenance_ns(accesses) / 1e6
        uncovered_ms = max(0.0, maintenance_ms - self.setup.workload.idle_ms)
        on_path_ns = self._misses_on_path_ns(accesses)
        return step + rows * on_path_ns / 1e6 + uncovered_ms

    def pulled_rows(
        self, engine: Engine, gpus: int, minutes: float, accesses: CacheAccesses | None = None
    ) -> float:
        """Returns the number of rows that all GPUs pull in `minutes` of training."""
        steps = minutes * 60e3 / self.step_ms(engine, gpus, accesses)
        return steps * self.setup.workload.gpu_accesses * gpus

    def relative_time(
        self, engine: Engine, gpus: int, accesses: CacheAccesses | None = None
    ) -> float:
        """Returns an epoch's time relative to DRAM-PS on 4 GPUs; k GPUs do 4/k of its steps."""
        reference = self.step_ms(Engine.DRAM_PS, _REFERENCE_GPUS)
        return self.step_ms(engine, gpus, accesses) / reference * _REFERENCE_GPUS / gpus

    def checkpoint_slowdown(
        self,
        engine: Engine,
        gpus: int,
        minutes: float,
        touched: TouchedRows,
        accesses: CacheAccesses | None = None,
        *,
        incremental: bool | None = None,
    ) -> float:
        """Returns the time with a checkpoint every `minutes` of training, relative to the time
        without checkpoints.

        touched: rows by the number of accesses. incremental: default: True except for PMem-OE.
        """
        if incremental is None:
            incremental = engine is not Engine.PMEM_OE
        workload = self.setup.workload
        seconds = workload.dense_bytes / (self.setup.servers.ssd_write_gb_per_s * 1e9)
        if incremental:
            pulled = self.pulled_rows(engine, gpus, minutes, accesses)
            touched_rows = touched.share_touched_by(pulled / workload.rows) * workload.rows
            rows = self.dram if engine is Engine.DRAM_PS else self.pmem
            copy_ns = self.dram.lookup_ns + rows.lone_load_ns + self.pmem.lone_store_ns
            seconds += touched_rows / self._nodes(engine) * copy_ns / 1e9
        return 1 + seconds / (minutes * 60)

    def recovery_s(self, engine: Engine) -> float:
        """Returns the time to recover PMem-OE or DRAM-PS from persistent memory.

        One thread of each node scans all rows and puts each into an index in DRAM; DRAM-PS also
        stores the row there.
        """
        if engine not in (Engine.PMEM_OE, Engine.DRAM_PS):
            raise ValueError(f"{engine.title}: nothing is known of its recovery")
        row_ns = self.pmem.scan_ns + self.dram.lookup_ns
        if engine is Engine.DRAM_PS:
            row_ns += self.dram.lone_store_ns
        return self.setup.workload.rows * row_ns / self._nodes(engine) / 1e9

    def _nodes(self, engine: Engine) -> int:
        servers = self.setup.servers
        return servers.dram_nodes if engine is Engine.DRAM_PS else servers.pmem_nodes

    def _cache_on_path_ns(self, accesses: CacheAccesses) -> float:
        """Returns Ori-Cache's nanoseconds for each row that is pulled and updated. Both move the
        row to the list's head under the list's lock, whose cache line comes from another core. All
        threads serve misses.
        """
        moves = 2 * self.setup.servers.line_handover_ns
        loads = accesses.misses + accesses.late_updates
        stores = accesses.demotions + accesses.late_updates
        return moves + loads * self.pmem.load_ns + stores * self.pmem.store_ns

    def _misses_on_path_ns(self, accesses: CacheAccesses) -> float:
        """Returns the nanoseconds that misses add to PMem-OE's pulls and updates per pulled row.

        All threads serve pulls. Each copies one row after another, so the idle latency counts, or
        the memory's bandwidth. A column's rows are updated by one thread, which reads and writes a
        row in persistent memory if it left the cache. Look-ups aren't counted: DRAM-PS does them
        too.
        """
        pulled_ns = max(self.pmem.load_ns, self.pmem.lone_load_ns / self.setup.servers.threads)
        update_ns = self._by_columns_ns(self.pmem.lone_load_ns, 1.0, 1.0)
        return accesses.misses * pulled_ns + accesses.late_updates * update_ns

    def _maintenance_ns(self, accesses: CacheAccesses) -> float:
        """Returns the nanoseconds of cache maintenance in PMem-OE per pulled row, until the last
        thread is done.

        Moves in the lists are spread over all threads. A promotion looks the row up and reads it
        from persistent memory; a demotion reads the oldest row and changes its entry in the index.
        """
        lookup_ns = self.dram.lookup_ns
        promotion_ns, demotion_ns = lookup_ns + self.pmem.lone_load_ns, 2 * lookup_ns
        alone = accesses.promotions * promotion_ns + accesses.demotions * demotion_ns
        moves = lookup_ns / self.setup.servers.threads
        return moves + self._by_columns_ns(alone, accesses.promotions, accesses.demotions)

    def _by_columns_ns(self, alone_ns: float, loads: float, stores: float) -> float:
        """Returns the nanoseconds until the slowest column is done with work that one thread would
        do in `alone_ns`: each column's misses are served by one thread, one after another. The
        result is at least the time that the memory's bandwidth needs for the loads and stores of
        rows.

        No thread waits for a store: OpenEmbedding flushes each row, and drains once for a
        checkpoint.
        """
        media = loads * self.pmem.load_ns + stores * self.pmem.store_ns
        return max(alone_ns * self.setup.workload.largest_column, media)
