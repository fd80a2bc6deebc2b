"""A folder of results like those that the lab's commands write, for tests of the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from recorded_facts import recorded_facts

from pmemlab.scenarios.metrics import Metric, ResultsFile

__all__ = ["CHECKPOINTS", "FIDELITY", "PLAN", "RUN", "emulated", "throughput", "write_results"]

RUN: Final = Metric(
    name="samples_per_s",
    value=14820.0,
    unit="samples/s",
    kind="measured",
    scenario="wdl-10m",
    storage_type="DRAM",
    topology="dram",
    machine="process",
    accelerator="none",
    facts={
        "kernel": "6.18.44",
        "cpus": [0, 1],
        "unproved": ["cpus"],
        "replaced": ["pmem.path /mnt/pmem0 -> /dev/shm: DRAM in place of PMem"],
    },
    commit="0123456789ab",
    time="2026-01-01T00:00:00+00:00",
)
D, P, M, S = "ddr4-2666-x6", "optane-100-x6", "optane-100-x6-memory-mode", "nvme-p4510"
_PREDICTIONS: Final[Mapping[str, Mapping[tuple[str, ...], float]]] = {
    "DRAM": {(D,): 14000.0, (M,): 9100.0},
    "PMEM_LIBPMEM": {(P,): 6300.0},
    "DRAM_PMEM": {(D, P): 11800.0},
    "DRAM_SSDHASH": {(D, S): 4200.0},
    "DRAM_PMEM_SSDHASH": {(D, P, S): 5100.0},
}
_BATCH: Final = 2048


def throughput() -> Iterator[list[Metric]]:
    """Yields, per storage type, the metrics of a run, of its predictions, and of a paced run."""
    for storage_type, predictions in _PREDICTIONS.items():
        run = replace(RUN, storage_type=storage_type)
        several = storage_type not in ("DRAM", "PMEM_LIBPMEM")
        kind: Any = "functional-only" if "PMEM" in storage_type else "measured"
        metrics = [replace(run, kind=kind), *_counted(run, 0.875 if several else 1.0, several)]
        for devices, rate in predictions.items():
            on = replace(run, kind="modelled", devices=devices)
            metrics += _timed(on, "modelled_", rate)
            if D in devices:
                metrics += [*_timed(on, "", 0.97 * rate), *_counted(on, 0.87, several)]
        yield metrics


def _timed(on: Metric, prefix: str, rate: float) -> list[Metric]:
    """Returns the metrics of a rate and of the parts of a step. prefix: before the rates' names."""
    step_ms = 1000 * _BATCH / rate
    parts = {"compute": 60.0}
    for tier in range(len(on.devices)):
        parts[f"tier{tier}"] = (step_ms - 60.0) / len(on.devices)
    return [
        replace(on, name=f"{prefix}samples_per_s", value=rate),
        replace(on, name=f"{prefix}lookups_per_s", value=52 * rate, unit="lookups/s"),
        *(
            replace(on, name=f"{prefix}step_ms.{part}", value=ms, unit="ms")
            for part, ms in parts.items()
        ),
    ]


def _counted(run: Metric, hit_rate: float, several: bool) -> list[Metric]:
    """Returns the metrics that a run counts. several: the run has several tiers."""
    share = 0.0625 if several else 1.0
    of_run = replace(run, kind="measured", unit="1")
    return [
        replace(of_run, name="auc", value=0.701),
        replace(of_run, name="hit_rate", value=hit_rate),
        replace(of_run, name="first_tier_share", value=share),
        replace(of_run, name="first_tier_bytes", value=3.2e8, unit="bytes"),
    ]


def emulated(topology: str, rate: float = 231.75) -> list[Metric]:
    """Returns the metrics of a run in a guest of the topology, with the recorded facts."""
    run = replace(
        RUN,
        scenario=topology,
        topology=topology,
        storage_type="DRAM_PMEM",
        machine="guest",
        accelerator="tcg",
        facts=recorded_facts(topology),
        kind="functional-only",
        value=rate,
    )
    return [run, *_counted(run, 0.5, several=True)]


def _tier(device: str, rows: float, hit_rate: float) -> dict[str, object]:
    return {"device": device, "rows": rows, "bytes": 528 * rows, "hit_rate": hit_rate}


PLAN: Final[Mapping[str, Any]] = {
    "kind": "modelled",
    "workload": {"rows": 2_000_000_000, "dim": 64, "skew": 1.05, "training": True},
    "plans": [
        {
            "storage_type": "DRAM_PMEM",
            "tiers": [_tier(D, 2e8, 0.91), _tier(P, 18e8, 0.09)],
            "lookups_per_s": 3.1e6,
            "machine": "re6p.13xlarge",
            "machines": 2,
            "step_ms": 12.5,
            "usd_per_month": 4100.0,
            "usd_per_million_lookups": 0.0003,
            "why_unpriced": None,
        },
        {
            "storage_type": "DRAM_SSDHASH",
            "tiers": [_tier(D, 1e8, 0.87), _tier(S, 19e8, 0.13)],
            "lookups_per_s": 5.2e6,
            "machine": "i3en.6xlarge",
            "machines": 1,
            "step_ms": 131.0,
            "usd_per_month": 5000.0,
            "usd_per_million_lookups": None,
        },
        {
            "storage_type": "DRAM",
            "tiers": [_tier(D, 20e8, 1.0)],
            "lookups_per_s": 3.3e6,
            "machine": "r6e.13xlarge",
            "machines": 3,
            "step_ms": None,
            "usd_per_month": 9200.0,
            "usd_per_million_lookups": 0.0007,
        },
        {
            "storage_type": "PMEM_MEMKIND",
            "tiers": [_tier("cxl-asic", 20e8, 1.0)],
            "lookups_per_s": 2.2e6,
            "machine": None,
            "machines": None,
            "usd_per_month": None,
            "why_unpriced": "no machine in prices.yaml holds cxl-asic",
        },
    ],
}
FIDELITY: Final[Mapping[str, Any]] = {
    "sections": [
        {
            "title": "Bandwidth of devices",
            "intro": "Each figure is foretold without itself; see [the README](devices/README.md).",
            "rows": [
                {
                    "name": "optane-100-x6, random read",
                    "published": 10200.0,
                    "predicted": 9802.5,
                    "unit": "MB/s",
                    "aim_percent": 10.0,
                    "note": "",
                },
                {"name": "without an aim", "published": 2.0, "predicted": 2.5, "unit": "s"},
            ],
            "remarks": [],
        },
        {
            "title": "OpenEmbedding",
            "intro": "",
            "rows": [
                {
                    "name": "PMem-Hash, 8 GPUs",
                    "published": 1.71,
                    "predicted": 1.31,
                    "unit": "of DRAM-PS on 4",
                    "aim_percent": 15,
                    "note": "the network isn't modelled",
                }
            ],
            "remarks": ["Of the network the paper says nothing."],
        },
    ],
}
CHECKPOINTS: Final[Mapping[str, Any]] = {
    "workload": "checkpoint_io",
    "kind": "measured",
    "arms": [
        {
            "model": "vgg16",
            "medium": "disk",
            "format": "safetensors",
            "save_bytes_per_s": 7.0e8,
            "stall_seconds": 0.17,
            "cold_bytes_per_s": 1.1e9,
            "warm_bytes_per_s": 2.4e9,
        },
        {
            "model": "vgg16",
            "medium": "pmem",
            "format": "mapped",
            "device": P,
            "kind": "modelled",
            "save_bytes_per_s": 2.1e9,
            "stall_seconds": 0.056,
            "cold_bytes_per_s": None,
            "warm_bytes_per_s": 2.6e9,
        },
        {
            "model": "vgg16",
            "medium": "sata-in-a-guest",
            "format": "torch",
            "kind": "functional-only",
            "save_bytes_per_s": 123.0e6,
            "cold_bytes_per_s": None,
            "warm_bytes_per_s": None,
        },
    ],
}


CACHE_SIZES: Final[Mapping[str, Any]] = {
    "workload": "cache_sizes",
    "table": "2,000,000 rows of dim 64 with Adagrad's sums",
    "dram": "ddr4-2666-x6",
    "pmem": P,
    "first_tiers": [
        {
            "share": 0.3,
            "bytes": 307.2e6,
            "hit_rate": 0.988,
            "app_direct_memory_ns": 16.0,
            "memory_mode_memory_ns": 24.0,
            "app_direct_ids_per_s": 2.5e6,
            "memory_mode_ids_per_s": 2.0e6,
            "memory_mode_hit_rate": 0.942,
        },
        {"share": 0.005, "bytes": 5.12e6, "hit_rate": 0.935, "memory_mode_memory_ns": None},
    ],
}


def write_results(folder: Path) -> Path:
    """Fills the folder with results of every kind, and returns it."""
    with ResultsFile(folder) as results:
        for metrics in throughput():
            results.append(metrics)
        for topology in ("fsdax", "memory-mode"):
            results.append(emulated(topology))
    documents = {
        "plan": PLAN,
        "fidelity": FIDELITY,
        "checkpoints": CHECKPOINTS,
        "cache-sizes": CACHE_SIZES,
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder
