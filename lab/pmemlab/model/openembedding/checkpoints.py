"""The time that checkpoints and recovery take.

Training stops for a checkpoint. Dense weights are written to an SSD. For an incremental checkpoint,
one thread of each node copies each row that was touched since the last one to persistent memory: it
looks the row up, reads it, and writes it durably before the next. PMem-OE's own checkpoint needs no
copy: rows reach persistent memory as the cache changes, and what a checkpoint adds is hidden with
the rest of the cache's work.
"""

from __future__ import annotations

from dataclasses import dataclass

from pmemlab.model.openembedding.accesses import CacheAccesses, TouchedRows
from pmemlab.model.openembedding.model import Engine, EpochModel

__all__ = ["Checkpoints", "recovery_s"]


@dataclass(frozen=True)
class Checkpoints:
    """A checkpoint every `minutes` of training. touched: rows by the number of accesses."""

    model: EpochModel
    minutes: float
    touched: TouchedRows

    def slowdown(
        self,
        engine: Engine,
        gpus: int,
        accesses: CacheAccesses | None = None,
        *,
        incremental: bool | None = None,
    ) -> float:
        """Returns the time with checkpoints, relative to the time without them.

        incremental: default: True except for PMem-OE.
        """
        if incremental is None:
            incremental = engine is not Engine.PMEM_OE
        seconds = self._dense_s()
        if incremental:
            seconds += self._touched_rows(engine, gpus, accesses) * self._copy_ns(engine) / 1e9
        return 1 + seconds / (self.minutes * 60)

    def _dense_s(self) -> float:
        setup = self.model.setup
        return setup.workload.dense_bytes / (setup.servers.ssd_write_gb_per_s * 1e9)

    def _touched_rows(self, engine: Engine, gpus: int, accesses: CacheAccesses | None) -> float:
        """Returns the rows touched on one node since the last checkpoint."""
        table_rows = self.model.setup.workload.rows
        pulled = self.model.pulled_rows(engine, gpus, self.minutes, accesses)
        return (
            self.touched.share_touched_by(pulled / table_rows)
            * table_rows
            / _nodes(self.model, engine)
        )

    def _copy_ns(self, engine: Engine) -> float:
        model = self.model
        rows = model.dram if engine is Engine.DRAM_PS else model.pmem
        return model.dram.lookup_ns + rows.lone_load_ns + model.pmem.lone_store_ns


def _nodes(model: EpochModel, engine: Engine) -> int:
    servers = model.setup.servers
    return servers.dram_nodes if engine is Engine.DRAM_PS else servers.pmem_nodes


def recovery_s(model: EpochModel, engine: Engine) -> float:
    """Returns the time to recover PMem-OE or DRAM-PS from persistent memory.

    One thread of each node scans all rows and puts each into an index in DRAM; DRAM-PS also stores
    the row there.
    """
    if engine not in (Engine.PMEM_OE, Engine.DRAM_PS):
        raise ValueError(f"{engine.title}: nothing is known of its recovery")
    row_ns = model.pmem.scan_ns + model.dram.lookup_ns
    if engine is Engine.DRAM_PS:
        row_ns += model.dram.lone_store_ns
    return model.setup.workload.rows * row_ns / _nodes(model, engine) / 1e9
