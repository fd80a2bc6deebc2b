"""`tiers`: tables larger than their first tier, on every storage type and on key-value stores."""

from __future__ import annotations

import argparse

from rich.table import Table

from embstore.bench import arguments, file_tier_rounds, tiers_suite
from embstore.bench.measure import Figure
from embstore.bench.report import Report
from embstore.bench.stores import STORE_NAMES, YARDSTICK
from embstore.bench.tiers_figures import (
    FileTierResult,
    Goal,
    StoreResult,
    TiersOptions,
    Unavailable,
)
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = TiersOptions()
    positive = arguments.positive
    parser.add_argument("--rows", type=positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=positive, nargs="+", default=default.dims)
    parser.add_argument(
        "--first-tier",
        type=arguments.proper_fraction,
        default=default.first_tier,
        metavar="FRACTION",
        help="of the rows",
    )
    parser.add_argument("--skew", type=arguments.skew, default=default.skew, help="Zipf's exponent")
    parser.add_argument("--batch-size", type=positive, default=default.batch_size, help="ids")
    parser.add_argument("--batches", type=positive, default=default.batches, help="a round")
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument(
        "--warm-up-batches", type=positive, default=default.warm_up_batches, help="to fill caches"
    )
    parser.add_argument(
        "--served-batches",
        type=positive,
        default=default.served_batches,
        help="to serve, so that rows have settled before serving and steps are measured once more",
    )
    parser.add_argument(
        "--store",
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
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)


def options_of(parsed: argparse.Namespace) -> TiersOptions:
    return TiersOptions(
        rows=parsed.rows,
        dims=tuple(parsed.dim),
        first_tier=parsed.first_tier,
        skew=parsed.skew,
        batch_size=parsed.batch_size,
        batches=parsed.batches,
        rounds=parsed.rounds,
        warm_up_batches=parsed.warm_up_batches,
        served_batches=parsed.served_batches,
        stores=tuple(parsed.store),
        path=parsed.path,
        direct=parsed.direct,
        clock=parsed.clock,
        seed=parsed.seed,
    )


advance_count = tiers_suite.advance_count


def run(options: TiersOptions, watcher: Watcher) -> Report:
    results = tiers_suite.run(options, watcher)
    tables = [
        _rate_table(results.stores, options),
        _byte_table(results.stores),
        _file_tier_table(results.file_tiers, options.direct),
        _goal_table(results.goals(options.direct)),
    ]
    if results.unavailable:
        tables.append(_unavailable_table(results.unavailable))
    return Report(tables, tiers_suite.to_json(options, results))


def _rate_table(results: list[StoreResult], options: TiersOptions) -> Table:
    table = Table(
        title=f"Zipf({options.skew:g}) ids: medians (ratio to {YARDSTICK}'s in the same rounds)",
        caption="train, serve: ids/s looked up, in serving with the moves that follow; "
        "step: lookup and Adagrad, batches/s; settled: the same after "
        f"{options.served_batches} more batches were served; hits: ids served in the first tier, "
        "settled ones behind the stroke",
    )
    for column in ("dim", "store"):
        table.add_column(column, no_wrap=True)
    for column in ("train M/s", "serve M/s", "settled", "hits", "step/s", "settled"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            str(result.dim),
            result.store,
            _rate(result.training_lookups_per_s, 1e6),
            _rate(result.lookups_per_s, 1e6),
            _rate(result.settled_lookups_per_s, 1e6),
            _hits(result),
            _rate(result.steps_per_s, 1),
            _rate(result.settled_steps_per_s, 1),
        )
    return table


def _byte_table(results: list[StoreResult]) -> Table:
    table = Table(
        title="Bytes a row",
        caption="memory: of the process, without pages of files; index: its part of that",
    )
    for column in ("dim", "store"):
        table.add_column(column)
    for column in ("memory", "index", "files"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            str(result.dim),
            result.store,
            f"{result.memory_bytes:.0f}",
            "-" if result.index_bytes is None else f"{result.index_bytes:.1f}",
            f"{result.file_bytes:.0f}",
        )
    return table


def _file_tier_table(results: list[FileTierResult], direct: bool) -> Table:
    table = Table(
        title="Tiers in files by themselves: million rows/s (median; min to max), and ratio to "
        f"{file_tier_rounds.YARDSTICK}",
        caption="SSDHASH past the page cache (O_DIRECT), LevelDB through it"
        if direct
        else "through the page cache: what the stores cost, not what the device does",
    )
    for column in ("dim", "operation", "tier"):
        table.add_column(column)
    for column in ("M rows/s", "range", "ratio", "files B/row"):
        table.add_column(column, justify="right")
    for before, result in zip([None, *results], results, strict=False):
        if before is not None and (before.dim, before.operation) != (result.dim, result.operation):
            table.add_section()
        figure = result.rows_per_s
        table.add_row(
            str(result.dim),
            result.operation,
            result.tier,
            f"{figure.median / 1e6:.3f}",
            f"{figure.minimum / 1e6:.2f} to {figure.maximum / 1e6:.2f}",
            _ratio(figure),
            f"{result.file_bytes:.0f}",
        )
    return table


def _goal_table(goals: list[Goal]) -> Table:
    table = Table(title="What is aimed at")
    for column in ("dim", "figure"):
        table.add_column(column)
    for column in ("aim", "measured"):
        table.add_column(column, justify="right")
    table.add_column("")
    for goal in goals:
        aim = f"≥ {goal.at_least:g}" if goal.at_least is not None else f"≤ {goal.at_most:g}"
        table.add_row(
            str(goal.dim),
            goal.what,
            aim,
            f"{goal.value:.2f}",
            "reached" if goal.reached else "missed",
        )
    return table


def _unavailable_table(unavailable: list[Unavailable]) -> Table:
    table = Table(title="Not measured: not available here")
    for column in ("dim", "store", "why"):
        table.add_column(column)
    for one in unavailable:
        table.add_row(str(one.dim), one.store, one.reason)
    return table


def _ratio(figure: Figure) -> str:
    return "-" if figure.ratio is None else f"{figure.ratio:.2f}"


def _rate(figure: Figure | None, unit: float) -> str:
    return "-" if figure is None else f"{figure.median / unit:.3g} ({_ratio(figure)})"


def _hits(result: StoreResult) -> str:
    rates = (result.lookup_hit_rate, result.settled_lookup_hit_rate)
    return " / ".join(f"{rate:.1%}" for rate in rates if rate is not None) or "-"
