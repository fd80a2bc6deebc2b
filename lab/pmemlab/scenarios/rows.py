"""Groups metrics of runs into rows: a line of a table, or a mark of a figure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pmemlab.machines.protocol import Accelerator, Kind
from pmemlab.scenarios.metrics import (
    AUC,
    DRAM_RATIO,
    FIRST_TIER_BYTES,
    FIRST_TIER_SHARE,
    HIT_RATE,
    LOOKUPS_PER_S,
    PREDICTED,
    SAMPLES_PER_S,
    STEP_MS,
    Metric,
    MetricKind,
)

if TYPE_CHECKING:
    from pmemlab.model.planning.prices import Prices

__all__ = [
    "ResultRow",
    "RowKey",
    "modelled_rates_of",
    "rate_cells",
    "result_rows",
    "rows_by_key",
]

_COUNTED: Final = (AUC, HIT_RATE, FIRST_TIER_BYTES, FIRST_TIER_SHARE)
"""Metrics that don't depend on speed."""


class RowKey(NamedTuple):
    """The key of results, by which newer results replace older ones.

    devices: as in a metric. predicted: whether the rates are a prediction, from a run whose tiers
        were left as they are; else they are a run's own.
    """

    scenario: str
    topology: str
    storage_type: str
    machine: Kind
    accelerator: Accelerator
    devices: tuple[str | None, ...]
    predicted: bool


@dataclass(frozen=True)
class ResultRow:
    """A storage type on a machine, and on devices if its tiers were paced or predicted.

    proved: whether the machine is of the scenario's topology; else it is this computer as it is.
    kind: of the two rates and of the times.
    hit_rate: share of the ids looked up whose row was in the first tier; None if unknown.
    first_tier_bytes, first_tier_share: bytes of its rows at the end, and their share of all rows.
    step_ms: milliseconds of a step by part, `compute` or `tier0` for example; empty if unknown.
    not_judged: conditions not given for a program of the user's, which ran and was not judged by
        them.
    dram_ratio: ratio of the samples/s to those of the same workload with all rows in DRAM.
    """

    scenario: str
    storage_type: str
    machine: Kind
    accelerator: Accelerator
    proved: bool
    kind: MetricKind
    samples_per_s: float
    lookups_per_s: float | None
    auc: float | None
    topology: str
    facts: Mapping[str, object]
    commit: str
    time: str
    hit_rate: float | None = None
    first_tier_bytes: float | None = None
    first_tier_share: float | None = None
    devices: tuple[str | None, ...] = ()
    predicted: bool = False
    step_ms: Mapping[str, float] = field(default_factory=dict)
    dram_ratio: float | None = None
    not_judged: tuple[str, ...] = ()

    @property
    def machine_label(self) -> str:
        if not self.proved:
            return f"{self.machine}, unproved"
        return (
            f"{self.machine} ({self.accelerator})" if self.accelerator != "none" else self.machine
        )

    @property
    def devices_label(self) -> str:
        """The tiers' devices; "as it is" for a tier that is not on a modelled device."""
        if not any(self.devices):
            return "-"
        return " + ".join(device or "as it is" for device in self.devices)

    @property
    def kind_label(self) -> str:
        if self.kind != "modelled":
            return self.kind
        return "modelled, predicted" if self.predicted else "modelled, paced"

    @property
    def has_rates(self) -> bool:
        """Whether the rates say how fast something is; else they only say that it works."""
        return self.kind != "functional-only"


def result_rows(metrics: Iterable[Metric]) -> list[ResultRow]:
    """Returns a row for the metrics of each run and each prediction, in order of appearance."""
    return list(rows_by_key(metrics).values())


def rows_by_key(metrics: Iterable[Metric]) -> dict[RowKey, ResultRow]:
    """Returns key -> row for the rows of `result_rows`."""
    gathered: dict[RowKey, dict[str, Metric]] = {}
    for metric in metrics:
        predicted = metric.name.startswith(PREDICTED)
        key = RowKey(
            metric.scenario,
            metric.topology,
            metric.storage_type,
            metric.machine,
            metric.accelerator,
            metric.devices,
            predicted,
        )
        gathered.setdefault(key, {})[metric.name.removeprefix(PREDICTED)] = metric
    rows: dict[RowKey, ResultRow] = {}
    for key, of_run in gathered.items():
        if SAMPLES_PER_S not in of_run:
            continue
        if key.predicted:
            # Counts come from the run that the prediction is based on.
            run = gathered.get(key._replace(devices=(), predicted=False), {})
            of_run |= {name: run[name] for name in _COUNTED if name in run}
        rows[key] = _row(key, of_run)
    return rows


def _row(key: RowKey, metrics: Mapping[str, Metric]) -> ResultRow:
    samples = metrics[SAMPLES_PER_S]
    return ResultRow(
        scenario=key.scenario,
        storage_type=key.storage_type,
        machine=key.machine,
        accelerator=key.accelerator,
        proved=not samples.facts.get("unproved"),
        kind=samples.kind,
        samples_per_s=samples.value or 0.0,
        lookups_per_s=_value(metrics, LOOKUPS_PER_S),
        topology=key.topology,
        facts=samples.facts,
        commit=samples.commit,
        time=samples.time,
        devices=key.devices,
        predicted=key.predicted,
        not_judged=samples.not_judged,
        step_ms={
            name.removeprefix(STEP_MS): metric.value
            for name, metric in metrics.items()
            if name.startswith(STEP_MS) and metric.value is not None
        },
        auc=_value(metrics, AUC),
        dram_ratio=_value(metrics, DRAM_RATIO),
        hit_rate=_value(metrics, HIT_RATE),
        first_tier_bytes=_value(metrics, FIRST_TIER_BYTES),
        first_tier_share=_value(metrics, FIRST_TIER_SHARE),
    )


def _value(metrics: Mapping[str, Metric], name: str) -> float | None:
    return metrics[name].value if name in metrics else None


def modelled_rates_of(
    works: Sequence[ResultRow], rows: Sequence[ResultRow]
) -> dict[int, ResultRow]:
    """Returns index in `works` -> its modelled rates, on the devices that the machine's media stand
    for. A row without modelled rates is left out.
    """
    by_run = {
        (row.scenario, row.topology, row.storage_type): row
        for row in rows
        if row.predicted and row.dram_ratio is not None
    }
    found = {
        n: by_run.get((row.scenario, row.topology, row.storage_type)) for n, row in enumerate(works)
    }
    return {number: row for number, row in found.items() if row is not None}


def rate_cells(row: ResultRow) -> tuple[str, str, str, str]:
    """Returns devices, samples/s, their ratio to DRAM, and USD per hour of the cheapest machine
    with the devices; a dash if the lab has no price of such a machine.
    """
    machine = _prices().cheapest_with([device for device in row.devices if device])
    return (
        row.devices_label,
        f"{row.samples_per_s:,.0f}",
        "-" if row.dram_ratio is None else f"{row.dram_ratio:.2f}",
        "-" if machine is None else f"{machine.usd_per_hour:.2f}",
    )


@functools.cache
def _prices() -> Prices:
    """Returns the lab's own prices, read once for all rows."""
    from pmemlab.model.planning.prices import load_prices

    return load_prices()
