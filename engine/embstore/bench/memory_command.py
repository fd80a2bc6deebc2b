"""`memory`: DRAM bytes a row, in each tier that rows can lie in."""

from __future__ import annotations

import argparse

from rich.table import Table

from embstore.bench import arguments, memory_suite
from embstore.bench.memory_suite import TIERS, MemoryOptions, MemoryResults
from embstore.bench.report import Report
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = MemoryOptions()
    positive = arguments.positive
    parser.add_argument("--rows", type=positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=positive, default=default.dim)
    parser.add_argument(
        "--store",
        nargs="+",
        choices=[tier.storage_type for tier in TIERS],
        default=default.storage_types,
        help="which storage types to measure; all of these by default",
    )
    parser.add_argument(
        "--path",
        type=arguments.folder,
        metavar="FOLDER",
        help="where files are made, and removed again: a folder on a disk; the system's temporary "
        "folder by default",
    )
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)


def options_of(parsed: argparse.Namespace) -> MemoryOptions:
    return MemoryOptions(
        rows=parsed.rows,
        dim=parsed.dim,
        storage_types=tuple(parsed.store),
        path=parsed.path,
        seed=parsed.seed,
    )


def advance_count(options: MemoryOptions) -> int:
    return len(memory_suite.tiers_of(options))


def run(options: MemoryOptions, watcher: Watcher) -> Report:
    results = memory_suite.run(options, watcher)
    tables = [_tier_table(options, results)]
    if results.unavailable:
        tables.append(_unavailable_table(results))
    return Report(tables, memory_suite.to_json(options, results))


def _tier_table(options: MemoryOptions, results: MemoryResults) -> Table:
    table = Table(
        title=f"DRAM a row of dim {options.dim}, {options.rows:,} rows",
        caption="all that the process grows by, pages of files aside; index: a part of that. "
        "Of LEVELDB up to 32 MiB are buffers, whatever the rows",
    )
    for column in ("store", "rows lie in"):
        table.add_column(column, no_wrap=True)
    for column in ("dram bytes/row", "index", "aim"):
        table.add_column(column, justify="right")
    table.add_column("")
    for tier in results.tiers:
        table.add_row(
            tier.storage_type,
            tier.tier,
            f"{tier.dram_bytes:.1f}",
            f"{tier.index_bytes:.1f}",
            "-" if tier.at_most is None else f"≤ {tier.at_most:g}",
            {None: "", True: "reached", False: "missed"}[tier.reached],
        )
    return table


def _unavailable_table(results: MemoryResults) -> Table:
    table = Table(title="Not measured: not available here")
    for column in ("store", "why"):
        table.add_column(column)
    for one in results.unavailable:
        table.add_row(one.storage_type, one.reason)
    return table
