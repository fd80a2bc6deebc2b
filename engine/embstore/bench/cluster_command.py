"""`cluster`: tables at servers, beside one here and the obvious actor; and a job of many tables."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from rich.table import Table

from embstore.bench import arguments, cluster_suite, many_tables_suite
from embstore.bench.cluster_suite import ClusterOptions, ClusterResult
from embstore.bench.many_tables_suite import ManyTablesOptions, ManyTablesResult
from embstore.bench.report import Report
from embstore.bench.tables import number, span, table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = ClusterOptions()
    arguments.add_counts(
        parser,
        default,
        rows="of a table",
        dim=None,
        shards=None,
        batch_size="ids",
        batches="a round",
        rounds=None,
    )
    arguments.add_seed(parser, default.seed)
    arguments.add_counts(
        parser,
        ManyTablesOptions(),
        tables="of the job of many tables (default: %(default)s)",
        samples="of a step of that job, each with an id in every table (default: %(default)s)",
    )


@dataclass(frozen=True)
class Options:
    one_table: ClusterOptions
    many_tables: ManyTablesOptions


def options_of(parsed: argparse.Namespace) -> Options:
    many_tables = ManyTablesOptions(
        tables=parsed.tables, samples=parsed.samples, rounds=parsed.rounds, seed=parsed.seed
    )
    return Options(arguments.options(ClusterOptions, parsed), many_tables)


def advance_count(options: Options) -> int:
    return cluster_suite.advance_count(options.one_table) + 1


def run(options: Options, watcher: Watcher) -> Report:
    results = cluster_suite.run(options.one_table, watcher)
    of_many = many_tables_suite.run(options.many_tables, watcher)
    document = cluster_suite.to_json(options.one_table, results)
    document["many tables"] = many_tables_suite.to_json(options.many_tables, of_many)
    return Report([_table(results), _table_of_many(options.many_tables, of_many)], document)


def _table_of_many(options: ManyTablesOptions, result: ManyTablesResult) -> Table:
    rows = [
        ("servers", f"{result.servers}"),
        ("start", f"{result.start_s:.1f} s"),
        (f"memory of all {result.processes} processes (PSS)", f"{result.pss_bytes / 1e9:.2f} GB"),
        ("step", f"{result.step_ms:.1f} ms"),
        ("step of one process without shards", f"{result.here_ms:.1f} ms"),
        ("ratio, in the same rounds", f"{result.ratio:.2f}"),
        ("step, one table after the other", f"{result.one_by_one_ms:.1f} ms"),
    ]
    return table(
        f"A job of {options.workers} workers with {options.tables} tables, shards="
        f"{options.shards}; steps of {options.samples} samples (medians)",
        ("figure",),
        ("value",),
        rows,
        one_line="all",
    )


def _table(results: list[ClusterResult]) -> Table:
    rows = [
        (
            result.operation,
            result.server,
            f"{result.ids_per_s.median / 1e6:.2f}",
            span(result.ids_per_s, 1),
            number(result.ids_per_s.ratio),
        )
        for result in results
    ]
    return table(
        "Zipf ids, Adagrad: million ids/s (median; min to max), and ratio to "
        f"{cluster_suite.YARDSTICK}, or of DeepFM {cluster_suite.LOCAL}, in the same rounds",
        ("operation", "server"),
        ("M ids/s", "range", "ratio"),
        rows,
        one_line="all",
        section=1,
    )
