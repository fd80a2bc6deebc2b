"""`peers`: other projects' tables and stores on the same ids, and this computer's own limits."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, peers_suite
from embstore.bench.computer_limits import Limit
from embstore.bench.peers_suite import NAMES, YARDSTICK, PeerResult, PeersOptions
from embstore.bench.report import Report
from embstore.bench.tables import number, table, unavailable_table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = PeersOptions()
    arguments.add_counts(parser, default, rows="rows a table", dim=None)
    arguments.add_fraction(
        parser,
        "--first-tier",
        default.first_tier,
        "of the rows: DRAM before embstore's files, and RocksDB's cache",
    )
    arguments.add_counts(parser, default, batch_size="ids", batches="a round", rounds=None)
    parser.add_argument(
        "--peer",
        dest="peers",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        help=f"which to measure beside the {YARDSTICK}; by default all that are installed",
    )
    arguments.add_path(parser)
    arguments.add_clock(parser, default.clock)
    arguments.add_seed(parser, default.seed)


options_of = partial(arguments.options, PeersOptions)
advance_count = peers_suite.advance_count


def run(options: PeersOptions, watcher: Watcher) -> Report:
    results = peers_suite.run(options, watcher)
    tables = [_rate_table(results.results), _limit_table(results.limits)]
    if results.unavailable:
        tables.append(unavailable_table(("peer",), results.unavailable.items()))
    return Report(tables, peers_suite.to_json(options, results))


def _rate_table(results: list[PeerResult]) -> Table:
    rows = [
        (
            str(result.dim),
            result.operation,
            "on disk" if result.is_on_disk else "in DRAM",
            result.peer,
            f"{result.ids_per_s.median / 1e6:.2f}",
            number(result.ids_per_s.ratio, 3),
        )
        for result in results
    ]
    return table(
        f"Zipf ids, one thread: million ids/s, and their ratio to the {YARDSTICK}'s",
        ("dim", "operation", "rows lie", "peer"),
        ("M ids/s", "ratio"),
        rows,
        caption="all rows in DRAM, or on disk through the page cache: what the software costs",
        one_line="all",
        section=2,
    )


def _limit_table(limits: list[Limit]) -> Table:
    rows = [
        (limit.what, limit.why_not if limit.rate is None else f"{limit.rate:,.1f}", limit.unit)
        for limit in limits
    ]
    return table("What this computer can do at most", ("",), ("rate",), rows, remark=True)
