"""`gpu`: rows in a GPU's memory, against PyTorch and the bandwidth of a copy."""

from __future__ import annotations

import argparse
import os

from rich.table import Table

from embstore.bench import arguments, gpu_suite
from embstore.bench.gpu_suite import EMULATED, MEANINGLESS, GpuOptions, GpuResults
from embstore.bench.report import Report
from embstore.bench.watcher import Watcher
from embstore.gpu.choice import VARIABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = GpuOptions()
    positive = arguments.positive
    parser.add_argument(
        "--device",
        type=arguments.gpu,
        default=os.environ.get(VARIABLE) or default.device,
        help=f"cuda, cuda:N, or emulated, whose rates mean nothing (default: {VARIABLE} of the "
        "environment, else cuda)",
    )
    parser.add_argument("--rows", type=positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=positive, nargs="+", default=default.dims)
    parser.add_argument("--batch-size", type=positive, default=default.batch_size, help="ids")
    parser.add_argument(
        "--fraction",
        type=arguments.proper_fraction,
        default=default.fraction,
        help="of the rows in HBM, where not all are (default: 0.1)",
    )
    parser.add_argument(
        "--settling-batches",
        type=positive,
        default=default.settling_batches,
        help="trained before anything is timed where not all rows are in HBM: counts tell rows "
        f"apart, and fewer move (default: {default.settling_batches})",
    )
    parser.add_argument("--batches", type=positive, default=default.batches, help="a round")
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument("--seed", type=arguments.seed, default=default.seed)


def options_of(parsed: argparse.Namespace) -> GpuOptions:
    return GpuOptions(
        device=parsed.device,
        rows=parsed.rows,
        dims=tuple(parsed.dim),
        batch_size=parsed.batch_size,
        fraction=parsed.fraction,
        settling_batches=parsed.settling_batches,
        batches=parsed.batches,
        rounds=parsed.rounds,
        seed=parsed.seed,
    )


def advance_count(options: GpuOptions) -> int:
    return gpu_suite.round_count(options)


def run(options: GpuOptions, watcher: Watcher) -> Report:
    results = gpu_suite.run(options, watcher)
    tables = [_rate_table(options, results), _unavailable_table(results)]
    return Report(tables, gpu_suite.to_json(options, results))


def _rate_table(options: GpuOptions, results: GpuResults) -> Table:
    copied = results.copy_bytes_per_s
    table = Table(
        title=f"Million ids/s on {options.device} (median; min to max), {options.rows:,} rows",
        caption=MEANINGLESS
        if options.device == EMULATED
        else "a copy's bandwidth wasn't measured"
        if copied is None
        else f"of a copy: the rows' bytes by the bandwidth of a copy, {copied / 1e9:,.0f} GB/s",
    )
    for column in ("dim", "in HBM", "operation", "contender"):
        table.add_column(column)
    for column in ("M ids/s", "range", "of PyTorch", "of a copy"):
        table.add_column(column, justify="right")
    setting = None
    for result in results.results:
        if setting is not None and setting != (result.dim, result.in_hbm, result.operation):
            table.add_section()
        setting = (result.dim, result.in_hbm, result.operation)
        figure = result.ids_per_s
        table.add_row(
            str(result.dim),
            f"{result.in_hbm:.0%}",
            result.operation,
            result.contender,
            f"{figure.median / 1e6:.2f}",
            f"{figure.minimum / 1e6:.2f} to {figure.maximum / 1e6:.2f}",
            _ratio(figure.ratio),
            _ratio(result.bandwidth_ratio),
        )
    return table


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _unavailable_table(results: GpuResults) -> Table:
    table = Table(title="Not measured")
    for column in ("contender", "why"):
        table.add_column(column)
    for name, why in results.unavailable.items():
        table.add_row(name, why)
    return table
