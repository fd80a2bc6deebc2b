"""Counters of several variables since the last look, for logs, TensorBoard and Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from embstore.checkpoint.arguments import check_variables
from embstore.errors import ClosedError, MissingLibraryError, ShardLostError
from embstore.variable import EmbeddingVariable

__all__ = ["Monitor"]

_log = logging.getLogger("embstore.monitor")

_COUNTED = {
    "hits": "ids looked up whose row was in the first tier",
    "misses": "ids looked up whose row was in a lower tier, or that have none",
    "without_row": "ids looked up that have no row, which are counted as misses too",
    "promotions": "moves of rows up, by a tier or several",
    "demotions": "moves of rows down by a tier",
}
_AS_OF_NOW = {
    "waiting_keys": "keys below their filter's threshold",
    "filter_bytes": "memory of the filter's counts",
    "index_bytes": "memory of the index",
    "has_background_error": "1 if the last attempt to move rows failed, else 0",
}


class Monitor:
    """A monitor that reports how the counters of variables' `stats()` have grown.

        monitor = es.Monitor([items, users])
        for step, batch in enumerate(batches):
            ...
            if step % 100 == 0:
                for name, value in monitor.scalars().items():  # "items/hit_rate", ...
                    writer.add_scalar(name, value, step)  # TensorBoard's SummaryWriter

    Prometheus reads all counters after `prometheus_client.REGISTRY.register(monitor)`.

    variables: with distinct names. Variables that are closed meanwhile are left out; so are those
        that lost a shard, with a warning.
    """

    def __init__(self, variables: Sequence[EmbeddingVariable]) -> None:
        self._variables = check_variables(variables)
        self._lock = threading.Lock()
        self._lost: set[str] = set()  # names that a warning was logged for
        self._before: dict[str, dict[str, Any]] = dict(self._stats())

    def since_last(self) -> dict[str, dict[str, float]]:
        """Returns the figures of each variable by its name, summed over its partitions.

        Since the last call, or since the monitor was made: hits, misses, without_row, promotions
        and demotions, as in `EmbeddingVariable.stats`, and hit_rate (nan if nothing was looked up).
        As of now: rows, waiting_keys, filter_bytes, index_bytes, has_background_error (1 if the
        last attempt to move rows failed, else 0) and rows_in_tier_N.
        """
        with self._lock:
            now = dict(self._stats())
            before, self._before = self._before, now
        return {name: _differences(before.get(name), stats) for name, stats in now.items()}

    def scalars(self) -> dict[str, float]:
        """Returns the figures of `since_last` in one dict, by names such as "items/hit_rate"."""
        return {
            f"{name}/{figure}": value
            for name, figures in self.since_last().items()
            for figure, value in figures.items()
        }

    def collect(self) -> Iterator[Any]:
        """Yields, for prometheus_client, the counters since the variables were made, and gauges."""
        try:
            from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        except ImportError as error:
            raise MissingLibraryError(
                "Prometheus's library isn't installed: pip install prometheus-client"
            ) from error
        kinds = ((CounterMetricFamily, _COUNTED), (GaugeMetricFamily, _AS_OF_NOW))
        families = {
            figure: kind(f"embstore_{figure}", help_text, labels=["variable"])
            for kind, figures in kinds
            for figure, help_text in figures.items()
        }
        tiers = {
            field: GaugeMetricFamily(f"embstore_{field}", help_text, labels=["variable", "tier"])
            for field, help_text in (
                ("rows", "rows a tier"),
                ("capacity_rows", "rows that a tier has room for; +Inf: unlimited"),
            )
        }
        for name, stats in self._stats():
            for figure, family in families.items():
                family.add_metric([name], stats[figure])
            for field, family in tiers.items():
                for tier, count in enumerate(_by_tier(stats, field)):
                    family.add_metric([name, str(tier)], count)
        yield from families.values()
        yield from tiers.values()

    def _stats(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for variable in self._variables:
            try:
                stats = variable.stats()
                stats["has_background_error"] = int(stats["background_error"] != "")
                yield variable.name, stats
            except ClosedError:
                continue
            except ShardLostError as error:
                if variable.name not in self._lost:
                    self._lost.add(variable.name)
                    _log.warning("Monitor leaves %s out from now on: %s", variable.name, error)


def _differences(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = {
        figure: now[figure] - (0 if before is None else before[figure]) for figure in _COUNTED
    }
    looked_up = figures["hits"] + figures["misses"]
    figures["hit_rate"] = figures["hits"] / looked_up if looked_up else float("nan")
    by_tier = _by_tier(now, "rows")
    figures["rows"] = sum(by_tier)
    for figure in _AS_OF_NOW:
        figures[figure] = now[figure]
    figures.update({f"rows_in_tier_{tier}": rows for tier, rows in enumerate(by_tier)})
    return figures


def _by_tier(stats: dict[str, Any], field: str) -> list[float]:
    """Returns a number of rows for each tier, summed over partitions; None counts as infinity."""
    sums: list[float] = []
    partition, level = None, 0
    for tier in stats["tiers"]:
        level = level + 1 if sums and tier.get("partition") == partition else 0
        partition = tier.get("partition")
        if level == len(sums):
            sums.append(0)
        sums[level] += float("inf") if tier[field] is None else tier[field]
    return sums
