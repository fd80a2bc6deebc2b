"""`durability`: checkpoints in a pool on PMem: what they cost, and how fast a table is back."""

from __future__ import annotations

import argparse
import os

from rich.table import Table

from embstore.bench import arguments, durability_suite
from embstore.bench.durability_suite import FUNCTIONAL_ONLY, DurabilityOptions, DurabilityResults
from embstore.bench.report import Report
from embstore.bench.watcher import Watcher
from embstore.gpu.choice import VARIABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = DurabilityOptions()
    positive = arguments.positive
    parser.add_argument(
        "--storage-type",
        choices=durability_suite.STORAGE_TYPES,
        default=default.storage_type,
        help=f"by default {default.storage_type}",
    )
    parser.add_argument(
        "--device",
        type=arguments.gpu,
        default=os.environ.get(VARIABLE) or default.device,
        help="that has a tier of HBM: cuda, cuda:N, or emulated, on which nothing is timed "
        f"(default: {VARIABLE} of the environment, else cuda)",
    )
    parser.add_argument("--rows", type=positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=positive, default=default.dim)
    parser.add_argument(
        "--first-tier",
        type=arguments.proper_fraction,
        default=default.first_tier,
        metavar="FRACTION",
        help="of the rows, in each tier above PMem",
    )
    parser.add_argument(
        "--pool",
        type=arguments.proper_fraction,
        default=default.pool,
        metavar="FRACTION",
        help="of the rows, in PMem above another tier",
    )
    parser.add_argument("--batch-size", type=positive, default=default.batch_size, help="ids")
    parser.add_argument(
        "--batches", type=positive, default=default.batches, help="between two checkpoints"
    )
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument(
        "--path",
        type=arguments.folder,
        metavar="FOLDER",
        help="where pools and saves lie, a dax mount say; /dev/shm by default, flushed as PMem is",
    )
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)


def options_of(parsed: argparse.Namespace) -> DurabilityOptions:
    return DurabilityOptions(
        storage_type=parsed.storage_type,
        device=parsed.device,
        rows=parsed.rows,
        dim=parsed.dim,
        first_tier=parsed.first_tier,
        pool=parsed.pool,
        batch_size=parsed.batch_size,
        batches=parsed.batches,
        rounds=parsed.rounds,
        path=parsed.path,
        seed=parsed.seed,
    )


advance_count = durability_suite.advance_count


def run(options: DurabilityOptions, watcher: Watcher) -> Report:
    results = durability_suite.run(options, watcher)
    if options.kind == FUNCTIONAL_ONLY:
        tables = [_functional_table(options, results)]
    else:
        tables = [
            _run_table(options, results),
            _recovery_table(options, results),
            _goal_table(options, results),
        ]
    return Report(tables, durability_suite.to_json(options, results))


def _functional_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    table = Table(
        title=f"{options.storage_type} on an emulated GPU, {options.rows:,} rows of dim "
        f"{options.dim}: {FUNCTIONAL_ONLY}",
        caption="an emulated GPU takes any time, so nothing was timed",
    )
    table.add_column("what was done")
    for result in results.runs:
        table.add_row(f"trained, {result.run}")
    for way in ("restore_persisted()", "restore()"):
        table.add_row(f"all rows came back by {way}")
    return table


def _run_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    table = Table(
        title=f"Training on {options.storage_type}, {options.rows:,} rows of dim {options.dim}, "
        f"a checkpoint every {options.batches} batches of {options.batch_size:,} ids",
        caption="medians; ratios of rounds to the runs without durability, and without "
        "checkpoints; "
        "call: how long training waited for the call that makes a checkpoint; "
        "cost: how much longer a round took with it",
    )
    table.add_column("run", no_wrap=True)
    for column in ("batches/s", "ratio", "to durable", "call ms", "cost ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results.runs:
        table.add_row(
            result.run,
            f"{result.batches_per_s.median:.1f}",
            "-" if result.batches_per_s.ratio is None else f"{result.batches_per_s.ratio:.3f}",
            "-" if result.ratio_to_durable is None else f"{result.ratio_to_durable:.3f}",
            "-" if result.call_s is None else f"{1e3 * result.call_s:.1f}",
            "-" if result.cost_s is None else f"{1e3 * result.cost_s:.1f}",
        )
    return table


def _recovery_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    table = Table(title=f"From a closed table to one with its {options.rows:,} rows")
    for column in ("way back", "seconds", "files MB"):
        table.add_column(column, justify="left" if column == "way back" else "right")
    table.add_row(
        "restore_persisted()",
        f"{results.restore_persisted_s:.3f}",
        f"{results.pool_bytes / 1e6:,.0f} (stay)",
    )
    table.add_row("restore()", f"{results.restore_s:.3f}", f"{results.save_bytes / 1e6:,.0f}")
    return table


def _goal_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    table = Table(title="What is aimed at")
    for column in ("figure", "aim", "measured", ""):
        table.add_column(column, justify="right" if column in ("aim", "measured") else "left")
    for goal in results.goals(options.dim):
        aim = f"≥ {goal.at_least:g}" if goal.at_least is not None else f"≤ {goal.at_most:g}"
        table.add_row(goal.what, aim, f"{goal.value:.3f}", "reached" if goal.reached else "missed")
    return table
