"""`rows`: rows in memory, against PyTorch and a hand-written loop."""

from __future__ import annotations

import argparse

from rich.table import Table

from embstore.bench import arguments, rows_suite
from embstore.bench.report import Report
from embstore.bench.rows_suite import RowsOptions, RowsResult
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = RowsOptions()
    positive = arguments.positive
    parser.add_argument("--rows", type=positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=positive, nargs="+", default=default.dims)
    parser.add_argument(
        "--batch-size", type=positive, nargs="+", default=default.batch_sizes, help="ids a call"
    )
    parser.add_argument("--threads", type=positive, nargs="+", default=default.threads)
    parser.add_argument("--batches", type=positive, default=default.batches, help="a round")
    parser.add_argument(
        "--small-batches",
        type=positive,
        default=default.small_batches,
        help="a round, of one id each; of larger batches as many as make so many ids",
    )
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)
    arguments.add_clock(parser, default.clock)


def options_of(parsed: argparse.Namespace) -> RowsOptions:
    return RowsOptions(
        rows=parsed.rows,
        dims=tuple(parsed.dim),
        batch_sizes=tuple(parsed.batch_size),
        threads=tuple(parsed.threads),
        batches=parsed.batches,
        small_batches=parsed.small_batches,
        rounds=parsed.rounds,
        seed=parsed.seed,
        clock=parsed.clock,
    )


def advance_count(options: RowsOptions) -> int:
    return rows_suite.round_count(options)


def run(options: RowsOptions, watcher: Watcher) -> Report:
    results = rows_suite.run(options, watcher)
    return Report([_table(results)], rows_suite.to_json(options, results))


def _table(results: list[RowsResult]) -> Table:
    table = Table(title="Million ids/s (median; min to max) and ratio to the hand-written loop")
    for column in ("dim", "threads", "ids", "operation", "contender"):
        table.add_column(column)
    for column in ("M ids/s", "range", "us a batch", "ratio"):
        table.add_column(column, justify="right")
    setting = None
    for result in results:
        last, setting = setting, (result.dim, result.threads, result.batch_size, result.operation)
        if last is not None and last != setting:
            table.add_section()
        figure = result.ids_per_s
        table.add_row(
            str(result.dim),
            str(result.threads),
            f"{result.batch_size:,}",
            result.operation,
            result.contender,
            f"{figure.median / 1e6:.2f}",
            f"{figure.minimum / 1e6:.1f} to {figure.maximum / 1e6:.1f}",
            f"{result.us_per_batch:,.1f}",
            "-" if figure.ratio is None else f"{figure.ratio:.2f}",
        )
    return table
