"""The figures of a measurement, and the text of the device file with them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import yaml

from pmemlab.model.devices.device_file import Curve, Kind

__all__ = [
    "Advance",
    "Figures",
    "device_file_text",
    "median_rate",
    "rounds_text",
    "significant",
]

_ROUNDS = 3


Advance = Callable[[str], None]
"""A function to call before each figure is measured, with the figure's description."""


@dataclass
class Figures:
    """The figures of a measurement. bandwidth: MB/s by (size in bytes, threads or requests in
    flight). method: the way it was measured. notes: caveats.
    """

    kind: Kind
    method: str
    bandwidth: dict[Curve, dict[tuple[int, int], float]] = field(default_factory=dict)
    idle_latency_ns: dict[Curve, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def median_rate(mb_per_s: Callable[[float], float], seconds: float) -> float:
    """Returns the median of a few rounds, which take `seconds` together."""
    return statistics.median(mb_per_s(seconds / _ROUNDS) for _ in range(_ROUNDS))


def rounds_text(seconds: float) -> str:
    """Describes in words how `median_rate` measures."""
    return f"medians of {_ROUNDS} rounds of {seconds / _ROUNDS:g} s a figure"


def device_file_text(
    figures: Figures,
    *,
    name: str,
    title: str,
    cpu: str,
    capacity_bytes: int,
    media_line_bytes: int,
    last_level_cache_bytes: int,
) -> str:
    """Returns the YAML of a device file."""
    system = os.uname()
    document: dict[str, Any] = {
        "name": name,
        "title": title,
        "kind": figures.kind,
        "capacity_gb": significant(capacity_bytes / 1e9),
        "media_line_bytes": media_line_bytes,
    }
    if figures.kind == "memory":
        document["measured_on"] = {
            "cpu": cpu,
            "last_level_cache_mib": last_level_cache_bytes / (1 << 20),
            "source": "here",
        }
    if figures.notes:
        document["notes"] = figures.notes
    document["sources"] = {
        "here": {
            "title": "measured here",
            "measured": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "what": f"by pmemlab model measure on {cpu}, {os.cpu_count()} CPUs, "
            f"{system.sysname} {system.release}; {figures.method}",
        }
    }
    document["idle_latency"] = [
        {
            "operation": operation,
            "pattern": pattern,
            "value": significant(ns),
            "unit": "ns",
            "source": "here",
        }
        for (operation, pattern), ns in figures.idle_latency_ns.items()
    ]
    document["bandwidth"] = [
        {
            "operation": operation,
            "pattern": pattern,
            "unit": "MB/s",
            "source": "here",
            "points": _points(figures.kind, values),
        }
        for (operation, pattern), values in figures.bandwidth.items()
    ]
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)


def _points(kind: Kind, values: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    concurrency = "threads" if kind == "memory" else "in_flight"
    points = []
    for size_bytes in sorted({size for size, _ in values}):
        counts = sorted(count for size, count in values if size == size_bytes)
        points.append(
            {
                "bytes": size_bytes,
                concurrency: counts,
                "values": [significant(values[size_bytes, count]) for count in counts],
            }
        )
    return points


def significant(value: float) -> float:
    """Rounds to four digits: a measurement has no more."""
    return float(f"{value:.4g}")
