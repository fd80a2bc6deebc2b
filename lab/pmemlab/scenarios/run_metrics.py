"""The metrics of a run, from its workload's report and its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pmemlab.scenarios.document import Scenario
from pmemlab.scenarios.metrics import (
    AUC,
    DRAM_RATIO,
    FIRST_TIER_BYTES,
    FIRST_TIER_SHARE,
    HIT_RATE,
    LOOKUPS_PER_S,
    LOSS,
    PREDICTED,
    SAMPLES_PER_S,
    STEP_MS,
    Metric,
    MetricKind,
)
from pmemlab.scenarios.modelled_rates import ModelledRate
from pmemlab.scenarios.rate_kinds import why_not_measured
from pmemlab.scenarios.runner import Outcome

__all__ = ["RATES", "rate_metrics", "run_metrics"]

RATES = {SAMPLES_PER_S: "samples/s", LOOKUPS_PER_S: "lookups/s"}


def run_metrics(
    scenario: Scenario,
    storage_type: str,
    outcome: Outcome,
    run: Mapping[str, Any],
    commit: str,
) -> list[Metric]:
    """Returns the metrics of `run`, the workload's report.

    Beside the fields of every run, it may have `step_ms`, milliseconds of a step by part;
    `devices`, the devices that its tiers were paced as; and `predictions`, each with `devices`,
    `samples_per_s` and, if known, `lookups_per_s` and `step_ms`.
    """
    devices = tuple(run.get("devices") or ())
    at = _now()

    def metric(name: str, value: float | None, unit: str, **fields: Any) -> Metric:
        return Metric(
            name=name,
            value=value,
            unit=unit,
            scenario=scenario.name,
            storage_type=storage_type,
            topology=scenario.topology.name,
            machine=outcome.machine,
            accelerator=outcome.accelerator,
            facts=outcome.facts,
            commit=commit,
            time=at,
            not_judged=scenario.not_judged,
            **fields,
        )

    def timings(timed: Mapping[str, Any], prefix: str = "", **fields: Any) -> list[Metric]:
        rates = [
            metric(prefix + name, timed[name], unit, **fields)
            for name, unit in RATES.items()
            if name in timed
        ]
        parts = timed.get("step_ms") or {}
        return rates + [
            metric(f"{prefix}{STEP_MS}{part}", ms, "ms", **fields) for part, ms in parts.items()
        ]

    kind: MetricKind = "measured"
    if any(devices):
        kind = "modelled"
    elif why_not_measured(scenario, storage_type, outcome, run):
        kind = "functional-only"
    tables = run["tables"]
    first_tier_bytes, first_tier_share = _first_tier(tables)
    counted = {
        # The training's results do not depend on speed.
        AUC: (run["auc"], "1"),
        LOSS: (run["loss"], "nat"),
        HIT_RATE: (_hit_rate(tables), "1"),
        FIRST_TIER_BYTES: (first_tier_bytes, "bytes"),
        FIRST_TIER_SHARE: (first_tier_share, "1"),
    }
    metrics = timings(run, kind=kind, devices=devices)
    metrics += [
        metric(name, value, unit, kind="measured", devices=devices)
        for name, (value, unit) in counted.items()
    ]
    for prediction in run.get("predictions") or ():
        on = tuple(prediction["devices"])
        metrics += timings(prediction, PREDICTED, kind="modelled", devices=on)
    return metrics


def rate_metrics(
    scenario: Scenario, storage_type: str, rate: ModelledRate, commit: str
) -> list[Metric]:
    """Returns the metrics of a rate that was modelled from a run on this computer."""
    return [
        Metric(
            name=PREDICTED + name,
            value=value,
            unit=unit,
            kind="modelled",
            scenario=scenario.name,
            storage_type=storage_type,
            topology=scenario.topology.name,
            machine="process",
            accelerator="none",
            facts={},
            commit=commit,
            time=_now(),
            devices=rate.devices,
        )
        for name, value, unit in (
            (SAMPLES_PER_S, rate.samples_per_s, RATES[SAMPLES_PER_S]),
            (DRAM_RATIO, rate.dram_ratio, "1"),
        )
    ]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _hit_rate(tables: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the share of ids looked up in training whose row was in the first tier."""
    hits = sum(table["stats"]["hits"] for table in tables)
    lookups = hits + sum(table["stats"]["misses"] for table in tables)
    return hits / lookups if lookups else None


def _first_tier(tables: Sequence[Mapping[str, Any]]) -> tuple[int | None, float | None]:
    """Returns bytes of the rows in the first tiers at the end, and their share of all rows."""
    tiers = [table["stats"]["tiers"] for table in tables]
    rows = sum(tier["rows"] for of_table in tiers for tier in of_table)
    if not rows:
        return None, None
    # Partitions have the same tiers, one after the other.
    first = [tier for of_table in tiers for tier in of_table if tier["name"] == of_table[0]["name"]]
    return sum(tier["bytes"] for tier in first), sum(tier["rows"] for tier in first) / rows
