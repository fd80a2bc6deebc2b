"""`rows`: rows in memory, against PyTorch and a hand-written loop."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, rows_suite
from embstore.bench.report import Report
from embstore.bench.rows_suite import RowsOptions, RowsResult
from embstore.bench.tables import number, span, table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = RowsOptions()
    arguments.add_counts(
        parser,
        default,
        rows="rows a table",
        dim=None,
        batch_size="ids a call",
        threads=None,
        batches="a round",
        small_batches="a round, of one id each; of larger batches as many as make so many ids",
        rounds=None,
    )
    arguments.add_seed(parser, default.seed)
    arguments.add_clock(parser, default.clock)


options_of = partial(arguments.options, RowsOptions)
advance_count = rows_suite.round_count


def run(options: RowsOptions, watcher: Watcher) -> Report:
    results = rows_suite.run(options, watcher)
    return Report([_table(results)], rows_suite.to_json(results))


def _table(results: list[RowsResult]) -> Table:
    rows = [
        (
            str(result.dim),
            str(result.threads),
            f"{result.batch_size:,}",
            result.operation,
            result.contender,
            f"{result.ids_per_s.median / 1e6:.2f}",
            span(result.ids_per_s, 1),
            f"{result.us_per_batch:,.1f}",
            number(result.ids_per_s.ratio),
        )
        for result in results
    ]
    return table(
        "Million ids/s (median; min to max) and ratio to the hand-written loop",
        ("dim", "threads", "ids", "operation", "contender"),
        ("M ids/s", "range", "us a batch", "ratio"),
        rows,
        section=4,
    )
