"""`memory`: DRAM bytes a row, in each tier that rows can lie in."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, memory_suite
from embstore.bench.memory_suite import TIERS, MemoryOptions, MemoryResults
from embstore.bench.report import Report
from embstore.bench.tables import number, reached, table, unavailable_table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = MemoryOptions()
    arguments.add_counts(parser, default, rows="rows a table", dim=None)
    parser.add_argument(
        "--store",
        dest="storage_types",
        nargs="+",
        choices=[tier.storage_type for tier in TIERS],
        default=default.storage_types,
        help="which storage types to measure; all of these by default",
    )
    arguments.add_path(
        parser,
        "where files are made, and removed again: a folder on a disk; the system's temporary "
        "folder by default",
    )
    arguments.add_seed(parser, default.seed)


options_of = partial(arguments.options, MemoryOptions)


def advance_count(options: MemoryOptions) -> int:
    return len(memory_suite.tiers_of(options))


def run(options: MemoryOptions, watcher: Watcher) -> Report:
    results = memory_suite.run(options, watcher)
    tables = [_tier_table(options, results)]
    if results.unavailable:
        missing = [(one.storage_type, one.reason) for one in results.unavailable]
        tables.append(unavailable_table(("store",), missing))
    return Report(tables, memory_suite.to_json(options, results))


def _tier_table(options: MemoryOptions, results: MemoryResults) -> Table:
    rows = [
        (
            tier.storage_type,
            tier.tier,
            number(tier.dram_bytes, 1),
            number(tier.index_bytes, 1),
            "-" if tier.at_most is None else f"≤ {tier.at_most:g}",
            "" if tier.reached is None else reached(tier.reached),
        )
        for tier in results.tiers
    ]
    return table(
        f"DRAM a row of dim {options.dim}, {options.rows:,} rows",
        ("store", "rows lie in"),
        ("dram bytes/row", "index", "aim"),
        rows,
        caption="all that the process grows by, pages of files aside; index: a part of that. "
        "Of LEVELDB up to 32 MiB are buffers, whatever the rows",
        remark=True,
        one_line="names",
    )
