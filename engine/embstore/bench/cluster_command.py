"""`cluster`: tables whose shards lie in other processes, beside one here and the obvious actor."""

from __future__ import annotations

import argparse

from rich.table import Table

from embstore.bench import arguments, cluster_suite
from embstore.bench.cluster_suite import ClusterOptions, ClusterResult
from embstore.bench.report import Report
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = ClusterOptions()
    positive = arguments.positive
    parser.add_argument("--rows", type=positive, default=default.rows, help="of a table")
    parser.add_argument("--dim", type=positive, default=default.dim)
    parser.add_argument("--shards", type=positive, nargs="+", default=default.shards)
    parser.add_argument("--batch-size", type=positive, default=default.batch_size, help="ids")
    parser.add_argument("--batches", type=positive, default=default.batches, help="a round")
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument("--seed", type=int, default=default.seed)


def options_of(parsed: argparse.Namespace) -> ClusterOptions:
    return ClusterOptions(
        rows=parsed.rows,
        dim=parsed.dim,
        shards=tuple(parsed.shards),
        batch_size=parsed.batch_size,
        batches=parsed.batches,
        rounds=parsed.rounds,
        seed=parsed.seed,
    )


advance_count = cluster_suite.advance_count


def run(options: ClusterOptions, watcher: Watcher) -> Report:
    results = cluster_suite.run(options, watcher)
    return Report([_table(results)], cluster_suite.to_json(options, results))


def _table(results: list[ClusterResult]) -> Table:
    table = Table(
        title="Zipf ids, Adagrad: million ids/s (median; min to max), and ratio to "
        f"{cluster_suite.YARDSTICK}, or of DeepFM {cluster_suite.LOCAL}, in the same rounds"
    )
    for column in ("operation", "server"):
        table.add_column(column, no_wrap=True)
    for column in ("M ids/s", "range", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for before, result in zip([None, *results], results, strict=False):
        if before is not None and before.operation != result.operation:
            table.add_section()
        figure = result.ids_per_s
        table.add_row(
            result.operation,
            result.server,
            f"{figure.median / 1e6:.2f}",
            f"{figure.minimum / 1e6:.1f} to {figure.maximum / 1e6:.1f}",
            "-" if figure.ratio is None else f"{figure.ratio:.2f}",
        )
    return table
