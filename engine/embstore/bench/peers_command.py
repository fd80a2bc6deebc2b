"""`peers`: other projects' tables and stores on the same ids, and this computer's own limits."""

from __future__ import annotations

import argparse

from rich.table import Table

from embstore.bench import arguments, peers_suite
from embstore.bench.computer_limits import Limit
from embstore.bench.peers_suite import NAMES, YARDSTICK, PeerResult, PeersOptions
from embstore.bench.report import Report
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = PeersOptions()
    positive = arguments.positive
    parser.add_argument("--rows", type=positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=positive, nargs="+", default=default.dims)
    parser.add_argument(
        "--first-tier",
        type=arguments.proper_fraction,
        default=default.first_tier,
        metavar="FRACTION",
        help="of the rows: DRAM before embstore's files, and RocksDB's cache",
    )
    parser.add_argument("--batch-size", type=positive, default=default.batch_size, help="ids")
    parser.add_argument("--batches", type=positive, default=default.batches, help="a round")
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument(
        "--peer",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        help=f"which to measure beside the {YARDSTICK}; by default all that are installed",
    )
    arguments.add_path(parser)
    arguments.add_clock(parser, default.clock)
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)


def options_of(parsed: argparse.Namespace) -> PeersOptions:
    return PeersOptions(
        rows=parsed.rows,
        dims=tuple(parsed.dim),
        first_tier=parsed.first_tier,
        batch_size=parsed.batch_size,
        batches=parsed.batches,
        rounds=parsed.rounds,
        peers=tuple(parsed.peer),
        path=parsed.path,
        clock=parsed.clock,
        seed=parsed.seed,
    )


advance_count = peers_suite.advance_count


def run(options: PeersOptions, watcher: Watcher) -> Report:
    results = peers_suite.run(options, watcher)
    tables = [_rate_table(results.results), _limit_table(results.limits)]
    if results.unavailable:
        tables.append(_unavailable_table(results.unavailable))
    return Report(tables, peers_suite.to_json(options, results))


def _rate_table(results: list[PeerResult]) -> Table:
    table = Table(
        title=f"Zipf ids, one thread: million ids/s, and their ratio to the {YARDSTICK}'s",
        caption="all rows in DRAM, or on disk through the page cache: what the software costs",
    )
    for column in ("dim", "operation", "rows lie", "peer"):
        table.add_column(column, no_wrap=True)
    for column in ("M ids/s", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    setting = None
    for result in results:
        last, setting = setting, (result.dim, result.operation)
        if last is not None and last != setting:
            table.add_section()
        figure = result.ids_per_s
        table.add_row(
            str(result.dim),
            result.operation,
            "on disk" if result.is_on_disk else "in DRAM",
            result.peer,
            f"{figure.median / 1e6:.2f}",
            "-" if figure.ratio is None else f"{figure.ratio:.3f}",
        )
    return table


def _limit_table(limits: list[Limit]) -> Table:
    table = Table(title="What this computer can do at most")
    table.add_column("")
    table.add_column("rate", justify="right")
    table.add_column("")
    for limit in limits:
        rate = limit.why_not if limit.rate is None else f"{limit.rate:,.1f}"
        table.add_row(limit.what, rate, limit.unit)
    return table


def _unavailable_table(unavailable: dict[str, str]) -> Table:
    table = Table(title="Not measured: not available here")
    for column in ("peer", "why"):
        table.add_column(column)
    for name, why in unavailable.items():
        table.add_row(name, why)
    return table
