"""The paper's machines and workload, from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pmemlab.errors import LabError
from pmemlab.schema import Count, Document, File, From, Positive, Text

__all__ = ["Servers", "Setup", "Workload", "load_setup"]

_FILE: Final = Path(__file__).with_name("setup.yaml")


@dataclass(frozen=True)
class Workload(
    Document,
    aliases={"miss_rate": "miss_rate_percent", "largest_column": "largest_column_percent"},
):
    """The trained model, and the figures of one step.

    step_accesses: rows pulled, and then pushed, in a step of `step_gpus` GPUs. step_ms: that step's
    time. idle_ms: the time between its last pull and its first update, while GPUs compute.
    miss_rate: of the engines' cache, with `miss_rate_gpus` GPUs. largest_column: the share of the
    rows, and of the misses, of the column with the most rows.
    """

    rows: Count
    row_bytes: Count
    dense_bytes: Count
    step_accesses: Count
    step_gpus: Count
    step_ms: Positive
    idle_ms: Positive
    miss_rate: Annotated[float, From(Positive, lambda percent: percent / 100)]
    miss_rate_gpus: Count
    largest_column: Annotated[float, From(Positive, lambda percent: percent / 100)]

    @property
    def gpu_accesses(self) -> float:
        """The number of rows that one GPU pulls in a step."""
        return self.step_accesses / self.step_gpus


@dataclass(frozen=True)
class Servers(Document):
    """The machines that hold the rows. threads: threads per node that serve rows."""

    threads: Count
    dram_nodes: Count
    pmem_nodes: Count
    dram_device: Text
    pmem_device: Text
    cache_gb: Positive
    line_handover_ns: Positive
    ssd_write_gb_per_s: Positive
    dram_dollars_per_hour: Positive
    pmem_dollars_per_hour: Positive


@dataclass(frozen=True)
class Setup(Document):
    """All inputs of the model except the four times that it is fitted to.

    cached_row_bytes: bytes of the cache per row, with its overhead.
    """

    source: Text
    workload: Workload
    servers: Servers
    cached_row_bytes: Positive

    def cached_rows(self, cache_gb: float) -> float:
        return cache_gb * 1e9 / self.cached_row_bytes


def load_setup(path: Path = _FILE) -> Setup:
    """Reads the file. Raises LabError, which names file, line and field."""
    return File.from_yaml(path, LabError).read(Setup)
