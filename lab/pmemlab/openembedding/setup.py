"""The paper's machines and workload, from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pmemlab.errors import LabError
from pmemlab.yaml_fields import Fields, is_number

__all__ = ["Servers", "Setup", "Workload", "load_setup"]

_FILE: Final = Path(__file__).with_name("setup.yaml")


@dataclass(frozen=True)
class Workload:
    """What is trained, and what a step of it was seen to do.

    step_accesses: rows pulled in a step of `step_gpus` GPUs, which are then pushed. step_ms: that
    step's time. idle_ms: between its last pull and its first update, while GPUs compute. miss_rate:
    of the engines' cache, with `miss_rate_gpus` GPUs.
    """

    rows: int
    row_bytes: int
    dense_bytes: int
    step_accesses: int
    step_gpus: int
    step_ms: float
    idle_ms: float
    miss_rate: float
    miss_rate_gpus: int

    @property
    def gpu_accesses(self) -> float:
        """Rows that one GPU pulls in a step."""
        return self.step_accesses / self.step_gpus


@dataclass(frozen=True)
class Servers:
    """The machines that hold the rows. threads: that serve rows, a node."""

    threads: int
    dram_nodes: int
    pmem_nodes: int
    dram_device: str
    pmem_device: str
    cache_gb: float
    line_handover_ns: float
    ssd_write_gb_per_s: float
    dram_dollars_per_hour: float
    pmem_dollars_per_hour: float


@dataclass(frozen=True)
class Setup:
    """All that the model is told beside the four times of its fit.

    cached_row_bytes: that a row takes of the cache, with all that it brings.
    """

    source: str
    workload: Workload
    servers: Servers
    cached_row_bytes: float

    def cached_rows(self, cache_gb: float) -> float:
        return cache_gb * 1e9 / self.cached_row_bytes


def load_setup(path: Path = _FILE) -> Setup:
    """Raise LabError, which names file and field."""
    fields = Fields.of_file(path, LabError)
    workload = fields.section("workload", required=True)
    servers = fields.section("servers", required=True)
    setup = Setup(
        source=fields.text("source"),
        workload=Workload(
            rows=_count(workload, "rows"),
            row_bytes=_count(workload, "row_bytes"),
            dense_bytes=_count(workload, "dense_bytes"),
            step_accesses=_count(workload, "step_accesses"),
            step_gpus=_count(workload, "step_gpus"),
            step_ms=_number(workload, "step_ms"),
            idle_ms=_number(workload, "idle_ms"),
            miss_rate=_number(workload, "miss_rate_percent") / 100,
            miss_rate_gpus=_count(workload, "miss_rate_gpus"),
        ),
        servers=Servers(
            threads=_count(servers, "threads"),
            dram_nodes=_count(servers, "dram_nodes"),
            pmem_nodes=_count(servers, "pmem_nodes"),
            dram_device=servers.text("dram_device"),
            pmem_device=servers.text("pmem_device"),
            cache_gb=_number(servers, "cache_gb"),
            line_handover_ns=_number(servers, "line_handover_ns"),
            ssd_write_gb_per_s=_number(servers, "ssd_write_gb_per_s"),
            dram_dollars_per_hour=_number(servers, "dram_dollars_per_hour"),
            pmem_dollars_per_hour=_number(servers, "pmem_dollars_per_hour"),
        ),
        cached_row_bytes=_number(fields, "cached_row_bytes"),
    )
    for section in (workload, servers, fields):
        section.finish()
    return setup


def _number(fields: Fields, name: str) -> float:
    value = fields.take(name, required=True)
    if not is_number(value) or value <= 0:
        raise fields.error(name, f"must be a number above 0, not {value!r}")
    return float(value)


def _count(fields: Fields, name: str) -> int:
    value = fields.take(name, required=True)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise fields.error(name, f"must be a whole number above 0, not {value!r}")
    return value
