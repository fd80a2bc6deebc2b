"""`durability`: checkpoints in a pool on PMem: what they cost, and how fast a table is back."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, durability_suite
from embstore.bench.durability_suite import FUNCTIONAL_ONLY, DurabilityOptions, DurabilityResults
from embstore.bench.report import Report
from embstore.bench.tables import goal_table, number, table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = DurabilityOptions()
    parser.add_argument(
        "--storage-type",
        choices=durability_suite.STORAGE_TYPES,
        default=default.storage_type,
        help=f"by default {default.storage_type}",
    )
    arguments.add_device(
        parser,
        default.device,
        "that has a tier of HBM: cuda, cuda:N, or emulated, on which nothing is timed",
    )
    arguments.add_counts(parser, default, rows="rows a table", dim=None)
    arguments.add_fraction(
        parser, "--first-tier", default.first_tier, "of the rows, in each tier above PMem"
    )
    arguments.add_fraction(
        parser, "--pool", default.pool, "of the rows, in PMem above another tier"
    )
    arguments.add_counts(
        parser, default, batch_size="ids", batches="between two checkpoints", rounds=None
    )
    arguments.add_path(
        parser,
        "where pools and saves lie, a dax mount say; /dev/shm by default, flushed as PMem is",
    )
    arguments.add_seed(parser, default.seed)


options_of = partial(arguments.options, DurabilityOptions)
advance_count = durability_suite.advance_count


def run(options: DurabilityOptions, watcher: Watcher) -> Report:
    results = durability_suite.run(options, watcher)
    if options.kind == FUNCTIONAL_ONLY:
        tables = [_functional_table(options, results)]
    else:
        tables = [
            _run_table(options, results),
            _recovery_table(options, results),
            goal_table(results.goals(options.dim), 3, with_dim=False),
        ]
    return Report(tables, durability_suite.to_json(options, results))


def _functional_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    done = [
        *(f"trained, {result.run}" for result in results.runs),
        *(f"all rows came back by {way}" for way in ("restore_persisted()", "restore()")),
    ]
    return table(
        f"{options.storage_type} on an emulated GPU, {options.rows:,} rows of dim "
        f"{options.dim}: {FUNCTIONAL_ONLY}",
        ("what was done",),
        (),
        [(one,) for one in done],
        caption="an emulated GPU takes any time, so nothing was timed",
    )


def _run_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    rows = [
        (
            result.run,
            number(result.batches_per_s.median, 1),
            number(result.batches_per_s.ratio, 3),
            number(result.ratio_to_durable, 3),
            _milliseconds(result.call_s),
            _milliseconds(result.cost_s),
        )
        for result in results.runs
    ]
    return table(
        f"Training on {options.storage_type}, {options.rows:,} rows of dim {options.dim}, "
        f"a checkpoint every {options.batches} batches of {options.batch_size:,} ids",
        ("run",),
        ("batches/s", "ratio", "to durable", "call ms", "cost ms"),
        rows,
        caption="medians; ratios of rounds to the runs without durability, and without "
        "checkpoints; "
        "call: how long training waited for the call that makes a checkpoint; "
        "cost: how much longer a round took with it",
        one_line="all",
    )


def _milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else 1e3 * seconds, 1)


def _recovery_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    pool, save = results.pool_bytes / 1e6, results.save_bytes / 1e6
    return table(
        f"From a closed table to one with its {options.rows:,} rows",
        ("way back",),
        ("seconds", "files MB"),
        [
            ("restore_persisted()", number(results.restore_persisted_s, 3), f"{pool:,.0f} (stay)"),
            ("restore()", number(results.restore_s, 3), f"{save:,.0f}"),
        ],
    )
