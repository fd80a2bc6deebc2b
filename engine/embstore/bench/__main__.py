"""python -m embstore.bench: a table on the terminal, JSON in a file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from embstore.bench import rows_suite
from embstore.bench.rows_suite import RowsOptions, RowsResult

try:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
except ImportError:  # the engine itself needs numpy alone
    sys.exit("embstore.bench needs rich and torch: pip install 'pmemlab[bench]'")


def main(arguments: list[str] | None = None) -> None:
    options, json_path = _parse(arguments)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=rows_suite.round_count(options))
        results = rows_suite.run(options, on_round=lambda: progress.advance(task))
    Console().print(_table(results))
    if json_path is not None:
        document = {**rows_suite.to_json(options, results), "machine": _machine()}
        json_path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"written: {json_path}")


def _parse(arguments: list[str] | None) -> tuple[RowsOptions, Path | None]:
    default = RowsOptions()
    parser = argparse.ArgumentParser(prog="python -m embstore.bench", description=__doc__)
    parser.add_argument("--rows", type=_positive, default=default.rows, help="rows a table")
    parser.add_argument("--dim", type=_positive, nargs="+", default=default.dims)
    parser.add_argument("--batch-size", type=_positive, default=default.batch_size, help="ids")
    parser.add_argument("--threads", type=_positive, nargs="+", default=default.threads)
    parser.add_argument("--batches", type=_positive, default=default.batches, help="a round")
    parser.add_argument("--rounds", type=_positive, default=default.rounds)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parsed = parser.parse_args(arguments)
    if parsed.json is not None and not parsed.json.parent.is_dir():
        parser.error(f"--json: {parsed.json.parent} is no directory")
    options = RowsOptions(
        rows=parsed.rows,
        dims=tuple(parsed.dim),
        batch_size=parsed.batch_size,
        threads=tuple(parsed.threads),
        batches=parsed.batches,
        rounds=parsed.rounds,
        seed=parsed.seed,
    )
    return options, parsed.json


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return value


def _table(results: list[RowsResult]) -> Table:
    table = Table(title="Million ids/s (median; min to max) and ratio to the hand-written loop")
    for column in ("dim", "threads", "operation", "contender"):
        table.add_column(column)
    for column in ("M ids/s", "range", "ratio"):
        table.add_column(column, justify="right")
    setting = None
    for result in results:
        if setting is not None and setting != (result.dim, result.threads, result.operation):
            table.add_section()
        setting = (result.dim, result.threads, result.operation)
        figure = result.ids_per_s
        table.add_row(
            str(result.dim),
            str(result.threads),
            result.operation,
            result.contender,
            f"{figure.median / 1e6:.2f}",
            f"{figure.minimum / 1e6:.1f} to {figure.maximum / 1e6:.1f}",
            "-" if figure.ratio is None else f"{figure.ratio:.2f}",
        )
    return table


def _machine() -> dict[str, object]:
    return {"cpu": _cpu_name(), "cpus": os.cpu_count(), "python": platform.python_version()}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
