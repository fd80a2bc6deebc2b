"""The command that tries sizes of DRAM in front of persistent memory: `python -m
benchmarks.cache_sizes`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pmemlab.progress_bar import progress_bar
from pmemlab.whole_file import check_output, write_output
from pmemlab.workloads.command_line import (
    add_count,
    column_keys,
    new_parser,
    not_negative,
    positive_number,
    run_command,
)

if TYPE_CHECKING:
    from benchmarks.cache_sweep import TableShape
    from pmemlab.model.devices.memory_mode import MemoryModeDevice
    from pmemlab.report.documents import FirstTier

_SHARES: Final = (0.1, 0.5, 2.0, 5.0, 12.5, 30.0)


def argument_parser() -> argparse.ArgumentParser:
    """Returns the command line's parser; needs no engine."""
    parser = new_parser(
        "benchmarks.cache_sizes",
        "Count how many ids a first tier of DRAM answers, by its size, and predict "
        "how fast it is, against as much DRAM as memory mode's cache.",
    )
    parser.add_argument(
        "--percent",
        type=_percent,
        nargs="+",
        default=list(_SHARES),
        metavar="P",
        help="percentages of the rows that the DRAM holds",
    )
    parser.add_argument(
        "--device",
        default="optane-100-x6-memory-mode",
        metavar="NAME|FILE",
        help="device of memory mode, whose DRAM and persistent memory are used",
    )
    parser.add_argument(
        "--path",
        type=Path,
        default=Path("/dev/shm"),
        metavar="PATH",
        help="folder in memory for the rows below the first tier",
    )
    table = parser.add_argument_group("the table and its training")
    add_count(table, "--rows", 2_000_000, "N", "rows of the table", type=column_keys)
    add_count(table, "--embedding-dim", 64, "D", "weights of a row")
    add_count(table, "--batch-size", 50_000, "IDS", "ids per batch")
    add_count(table, "--steps", 20, "N", "batches that are counted")
    add_count(
        table,
        "--warm-up-steps",
        10,
        "N",
        "batches before the counted ones",
        type=not_negative,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the report")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for bad arguments or what the engine refuses."""
    return run_command(argument_parser(), argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from benchmarks.cache_sweep import TableShape, sweep
    from pmemlab.errors import LabError

    if not arguments.path.is_dir():
        raise LabError(f"--path {arguments.path}: is no folder")
    check_output("--json", arguments.json)
    device = _memory_mode(arguments.device)
    shape = TableShape(
        rows=arguments.rows,
        dim=arguments.embedding_dim,
        batch_size=arguments.batch_size,
        steps=arguments.steps,
        warm_up_steps=arguments.warm_up_steps,
    )
    shares = sorted({percent / 100 for percent in arguments.percent})
    with progress_bar("", len(shares) + 1, completed=-1) as show:
        sizes = sweep(
            shape,
            shares,
            device,
            arguments.path,
            lambda what: show(description=what, advance=1),
        )
    if arguments.json:
        text = json.dumps(_document(shape, device, sizes))
        write_output("--json", arguments.json, f"{text}\n")
    print(_summary(sizes, device))


def _memory_mode(name: str) -> MemoryModeDevice:
    from pmemlab.errors import LabError
    from pmemlab.model.devices import load_device
    from pmemlab.model.devices.memory_mode import MemoryModeDevice

    device = load_device(name)
    if not isinstance(device, MemoryModeDevice):
        raise LabError(f"--device {name}: has no DRAM before it; give a device of memory mode")
    return device


def _document(
    shape: TableShape, device: MemoryModeDevice, sizes: Sequence[FirstTier]
) -> dict[str, Any]:
    """Returns the document that `pmemlab report` reads."""
    return {
        "workload": "cache_sizes",
        "table": f"{shape.rows:,} rows of dim {shape.dim} with Adagrad's sums",
        "dram": device.dram.name,
        "pmem": device.pmem.name,
        "first_tiers": [asdict(size) for size in sizes],
    }


def _summary(sizes: Sequence[FirstTier], device: MemoryModeDevice) -> str:
    lines = [
        f"{device.dram.name} before {device.pmem.name}; modelled: ns of memory an id, M ids/s",
        f"{'':>30} {'app direct':>15} {'memory mode':>15}",
        f"{'rows in DRAM':>13} {'MB':>8} {'hits':>7} {'ns':>8} {'M/s':>6} {'ns':>8} {'M/s':>6}",
    ]
    for size in sizes:
        modes = (
            (size.app_direct_memory_ns, size.app_direct_ids_per_s),
            (size.memory_mode_memory_ns, size.memory_mode_ids_per_s),
        )
        cells = " ".join(
            f"{_figure_text(ns, 1):>8} {_figure_text(rate, 1e6):>6}" for ns, rate in modes
        )
        lines.append(f"{size.share:>13.2%} {size.bytes / 1e6:>8,.1f} {size.hit_rate:>7.1%} {cells}")
    return "\n".join(lines)


def _figure_text(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.2f}"


def _percent(text: str) -> float:
    percent = positive_number(text)
    if percent >= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return percent


if __name__ == "__main__":
    sys.exit(main())
