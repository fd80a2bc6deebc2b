"""`gpu`: rows in a GPU's memory, against PyTorch and the bandwidth of a copy."""

from __future__ import annotations

import argparse
from functools import partial

from rich.table import Table

from embstore.bench import arguments, gpu_suite
from embstore.bench.gpu_suite import EMULATED, MEANINGLESS, GpuOptions, GpuResults
from embstore.bench.report import Report
from embstore.bench.tables import number, span, table
from embstore.bench.watcher import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = GpuOptions()
    arguments.add_device(
        parser, default.device, "cuda, cuda:N, or emulated, whose rates mean nothing"
    )
    arguments.add_counts(parser, default, rows="rows a table", dim=None, batch_size="ids")
    arguments.add_fraction(
        parser,
        "--fraction",
        default.fraction,
        "of the rows in HBM, where not all are (default: 0.1)",
    )
    arguments.add_counts(
        parser,
        default,
        settling_batches="trained before anything is timed where not all rows are in HBM: counts "
        f"tell rows apart, and fewer move (default: {default.settling_batches})",
        batches="a round",
        rounds=None,
    )
    arguments.add_seed(parser, default.seed)


options_of = partial(arguments.options, GpuOptions)
advance_count = gpu_suite.round_count


def run(options: GpuOptions, watcher: Watcher) -> Report:
    results = gpu_suite.run(options, watcher)
    missing = table("Not measured", ("contender", "why"), (), results.unavailable.items())
    return Report([_rate_table(options, results), missing], gpu_suite.to_json(options, results))


def _rate_table(options: GpuOptions, results: GpuResults) -> Table:
    copied = results.copy_bytes_per_s
    rows = [
        (
            str(result.dim),
            f"{result.in_hbm:.0%}",
            result.operation,
            result.contender,
            f"{result.ids_per_s.median / 1e6:.2f}",
            span(result.ids_per_s, 2),
            number(result.ids_per_s.ratio),
            number(result.bandwidth_ratio),
        )
        for result in results.results
    ]
    return table(
        f"Million ids/s on {options.device} (median; min to max), {options.rows:,} rows",
        ("dim", "in HBM", "operation", "contender"),
        ("M ids/s", "range", "of PyTorch", "of a copy"),
        rows,
        caption=MEANINGLESS
        if options.device == EMULATED
        else "a copy's bandwidth wasn't measured"
        if copied is None
        else f"of a copy: the rows' bytes by the bandwidth of a copy, {copied / 1e9:,.0f} GB/s",
        section=3,
    )
