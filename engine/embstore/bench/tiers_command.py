"""`tiers`: tables larger than their first tier, on every storage type and on key-value stores."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, file_tier_rounds, tiers_suite
from embstore.bench.measure import Figure
from embstore.bench.report import Report
from embstore.bench.stores import STORE_NAMES, YARDSTICK
from embstore.bench.tables import goal_table, number, span, table, unavailable_table
from embstore.bench.tiers_figures import FileTierResult, StoreResult, TiersOptions
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = TiersOptions()
    arguments.add_counts(parser, default, rows="rows a table", dim=None)
    arguments.add_fraction(parser, "--first-tier", default.first_tier, "of the rows")
    arguments.add_skew(parser, default.skew)
    arguments.add_counts(
        parser,
        default,
        batch_size="ids",
        batches="a round",
        rounds=None,
        warm_up_batches="to fill caches",
        served_batches="to serve, so that rows have settled before serving and steps are measured "
        "once more",
    )
    parser.add_argument(
        "--store",
        dest="stores",
        nargs="+",
        choices=STORE_NAMES,
        default=STORE_NAMES,
        help=f"which to measure beside {YARDSTICK}; all by default",
    )
    arguments.add_path(parser)
    parser.add_argument(
        "--direct",
        action="store_true",
        help="SSDHASH by itself goes past the page cache; LevelDB can't",
    )
    arguments.add_clock(parser, default.clock)
    arguments.add_seed(parser, default.seed)


options_of = partial(arguments.options, TiersOptions)
advance_count = tiers_suite.advance_count


def run(options: TiersOptions, watcher: Watcher) -> Report:
    results = tiers_suite.run(options, watcher)
    tables = [
        _rate_table(results.stores, options),
        _byte_table(results.stores),
        _file_tier_table(results.file_tiers, options.direct),
        goal_table(results.goals(options.direct), 2),
    ]
    if results.unavailable:
        missing = [(str(one.dim), one.store, one.reason) for one in results.unavailable]
        tables.append(unavailable_table(("dim", "store"), missing))
    return Report(tables, tiers_suite.to_json(options, results))


def _rate_table(results: list[StoreResult], options: TiersOptions) -> Table:
    rows = [
        (
            str(result.dim),
            result.store,
            _rate(result.training_lookups_per_s, 1e6),
            _rate(result.lookups_per_s, 1e6),
            _rate(result.settled_lookups_per_s, 1e6),
            _hits(result),
            _rate(result.steps_per_s, 1),
            _rate(result.settled_steps_per_s, 1),
        )
        for result in results
    ]
    return table(
        f"Zipf({options.skew:g}) ids: medians (ratio to {YARDSTICK}'s in the same rounds)",
        ("dim", "store"),
        ("train M/s", "serve M/s", "settled", "hits", "step/s", "settled"),
        rows,
        caption="train, serve: ids/s looked up, in serving with the moves that follow; "
        "step: lookup and Adagrad, batches/s; settled: the same after "
        f"{options.served_batches} more batches were served; hits: ids served in the first tier, "
        "settled ones behind the stroke",
        one_line="all",
    )


def _byte_table(results: list[StoreResult]) -> Table:
    rows = [
        (
            str(result.dim),
            result.store,
            number(result.memory_bytes, 0),
            number(result.index_bytes, 1),
            number(result.file_bytes, 0),
        )
        for result in results
    ]
    return table(
        "Bytes a row",
        ("dim", "store"),
        ("memory", "index", "files"),
        rows,
        caption="memory: of the process, without pages of files; index: its part of that",
    )


def _file_tier_table(results: list[FileTierResult], direct: bool) -> Table:
    rows = [
        (
            str(result.dim),
            result.operation,
            result.tier,
            f"{result.rows_per_s.median / 1e6:.3f}",
            span(result.rows_per_s, 2),
            number(result.rows_per_s.ratio),
            number(result.file_bytes, 0),
        )
        for result in results
    ]
    return table(
        "Tiers in files by themselves: million rows/s (median; min to max), and ratio to "
        f"{file_tier_rounds.YARDSTICK}",
        ("dim", "operation", "tier"),
        ("M rows/s", "range", "ratio", "files B/row"),
        rows,
        caption="SSDHASH past the page cache (O_DIRECT), LevelDB through it"
        if direct
        else "through the page cache: what the stores cost, not what the device does",
        section=2,
    )


def _rate(figure: Figure | None, unit: float) -> str:
    return "-" if figure is None else f"{figure.median / unit:.3g} ({number(figure.ratio)})"


def _hits(result: StoreResult) -> str:
    rates = (result.lookup_hit_rate, result.settled_lookup_hit_rate)
    return " / ".join(f"{rate:.1%}" for rate in rates if rate is not None) or "-"
