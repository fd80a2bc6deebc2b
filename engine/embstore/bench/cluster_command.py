"""`cluster`: tables at servers, beside one here and the obvious actor; and a job of many tables."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from rich.table import Table

from embstore.bench import arguments, cluster_suite, many_tables_suite
from embstore.bench.cluster_suite import ClusterOptions, ClusterResult
from embstore.bench.many_tables_suite import ManyTablesOptions, ManyTablesResult
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
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)
    many = ManyTablesOptions()
    parser.add_argument(
        "--tables",
        type=positive,
        default=many.tables,
        help="of the job of many tables (default: %(default)s)",
    )
    parser.add_argument(
        "--samples",
        type=positive,
        default=many.samples,
        help="of a step of that job, each with an id in every table (default: %(default)s)",
    )


@dataclass(frozen=True)
class Options:
    one_table: ClusterOptions
    many_tables: ManyTablesOptions


def options_of(parsed: argparse.Namespace) -> Options:
    one_table = ClusterOptions(
        rows=parsed.rows,
        dim=parsed.dim,
        shards=tuple(parsed.shards),
        batch_size=parsed.batch_size,
        batches=parsed.batches,
        rounds=parsed.rounds,
        seed=parsed.seed,
    )
    many_tables = ManyTablesOptions(
        tables=parsed.tables, samples=parsed.samples, rounds=parsed.rounds, seed=parsed.seed
    )
    return Options(one_table, many_tables)


def advance_count(options: Options) -> int:
    return cluster_suite.advance_count(options.one_table) + 1


def run(options: Options, watcher: Watcher) -> Report:
    results = cluster_suite.run(options.one_table, watcher)
    of_many = many_tables_suite.run(options.many_tables, watcher)
    document = cluster_suite.to_json(options.one_table, results)
    document["many tables"] = many_tables_suite.to_json(options.many_tables, of_many)
    return Report([_table(results), _table_of_many(options.many_tables, of_many)], document)


def _table_of_many(options: ManyTablesOptions, result: ManyTablesResult) -> Table:
    table = Table(
        title=f"A job of {options.workers} workers with {options.tables} tables, shards="
        f"{options.shards}; steps of {options.samples} samples (medians)"
    )
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for name, value in (
        ("servers", f"{result.servers}"),
        ("start", f"{result.start_s:.1f} s"),
        (f"memory of all {result.processes} processes (PSS)", f"{result.pss_bytes / 1e9:.2f} GB"),
        ("step", f"{result.step_ms:.1f} ms"),
        ("step of one process without shards", f"{result.here_ms:.1f} ms"),
        ("ratio, in the same rounds", f"{result.ratio:.2f}"),
        ("step, one table after the other", f"{result.one_by_one_ms:.1f} ms"),
    ):
        table.add_row(name, value)
    return table


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
