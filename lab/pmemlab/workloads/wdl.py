"""The command that trains Wide & Deep on Criteo rows: `python -m pmemlab.workloads.wdl`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pmemlab.workloads.batches import DataError, Source
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.synthetic import MIN_KEYS_PER_COLUMN, SyntheticSource

if TYPE_CHECKING:
    import embstore as es
    from pmemlab.workloads.training import Run

SYNTHETIC: Final = "synthetic"
NO_PATH: Final = "-"
"""In --storage-path, in the place of a tier that keeps no files."""
TABLES: Final = 52
"""Tables that a model has, each of which gets the whole of --storage-size."""


def argument_parser() -> argparse.ArgumentParser:
    """The command line; importing it needs neither PyTorch nor the engine."""
    parser = argparse.ArgumentParser(
        prog="python -m pmemlab.workloads.wdl",
        description="Train Wide & Deep on Criteo rows with the embeddings on a storage type.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    storage = parser.add_argument_group("storage of the embeddings")
    storage.add_argument("--storage-type", default="DRAM", help="a name of embstore.StorageType")
    storage.add_argument(
        "--storage-path",
        nargs="+",
        metavar="PATH",
        help="where tiers that keep files have them: one for all of these, or one for each tier, "
        f"first tier first, and {NO_PATH} for those that keep none",
    )
    storage.add_argument(
        "--storage-size",
        type=_positive,
        nargs="+",
        metavar="BYTES",
        help=f"bytes for each tier, first tier first, of each of the {TABLES} tables",
    )
    storage.add_argument(
        "--reference",
        metavar="TYPE",
        help="train first on this storage type in the same process, to compare with",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", default=SYNTHETIC, metavar="FILE", help=f"a Criteo file, or {SYNTHETIC!r}"
    )
    data.add_argument(
        "--keys-per-column",
        type=_positive,
        default=100_000,
        metavar="N",
        help=f"different keys of a synthetic column, {MIN_KEYS_PER_COLUMN} or more",
    )
    data.add_argument(
        "--held-out-rows",
        type=_positive,
        default=10_000,
        metavar="N",
        help="rows to judge by, of synthetic data; a file's last of every ten are held out",
    )
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=_positive, default=100, metavar="N")
    training.add_argument("--batch-size", type=_positive, default=512, metavar="ROWS")
    training.add_argument("--embedding-dim", type=_positive, default=16, metavar="D")
    training.add_argument(
        "--hidden-units",
        type=_positive,
        nargs="+",
        default=[1024, 512, 256],
        metavar="UNITS",
        help="widths of the deep part's layers",
    )
    training.add_argument("--seed", type=_not_negative, default=2021, metavar="N")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a summary"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for bad arguments or data, 1 for a bad run."""
    parser = argument_parser()
    try:
        arguments = parser.parse_args(argv)
    except argparse.ArgumentError as error:
        parser.print_usage(sys.stderr)
        print(f"wdl: {error}", file=sys.stderr)
        return 2
    try:
        source = _source(arguments)
    except DataError as error:
        print(f"wdl: {error}", file=sys.stderr)
        return 2

    # Only now: a wrong argument should not cost an import of PyTorch.
    from embstore.errors import EmbStoreError
    from pmemlab.workloads.training import DivergedError

    try:
        subject = _storage_option(
            arguments.storage_type, arguments.storage_path, arguments.storage_size
        )
        reference = _storage_option(arguments.reference) if arguments.reference else None
        reference_run = _train(reference, source, arguments) if reference else None
        run = _train(subject, source, arguments)
    except (DataError, EmbStoreError) as error:
        print(f"wdl: {error}", file=sys.stderr)
        return 2
    except DivergedError as error:
        print(f"wdl: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(_document(arguments, run, reference_run)))
    else:
        for shown in filter(None, (reference_run, run)):
            print(_summary(shown))
    return 0


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.data == SYNTHETIC:
        return SyntheticSource(
            seed=arguments.seed,
            keys_per_column=arguments.keys_per_column,
            held_out_rows=arguments.held_out_rows,
        )
    return CriteoSource(Path(arguments.data))


def _storage_option(
    storage_type: str, paths: Sequence[str] | None = None, size: Sequence[int] | None = None
) -> es.StorageOption:
    import embstore as es
    from embstore.errors import InvalidArgumentError

    try:
        member = es.StorageType[storage_type]
    except KeyError:
        names = ", ".join(es.StorageType.__members__)
        raise InvalidArgumentError(
            f"storage type {storage_type!r} is unknown; there are {names}"
        ) from None
    path = paths[0] if paths and len(paths) == 1 else None
    of_tiers = [None if path == NO_PATH else path for path in paths or ()]
    return es.StorageOption(
        storage_type=member, storage_path=path or of_tiers or None, storage_size=size
    )


def _train(storage: es.StorageOption, source: Source, arguments: argparse.Namespace) -> Run:
    from pmemlab.workloads.training import train
    from pmemlab.workloads.wide_and_deep import ModelOptions

    options = ModelOptions(
        arguments.embedding_dim, tuple(arguments.hidden_units), seed=arguments.seed
    )
    with _ProgressBar(storage.storage_type.name, arguments.steps) as bar:
        return train(
            source,
            storage,
            steps=arguments.steps,
            batch_size=arguments.batch_size,
            model=options,
            progress=bar.show,
        )


class _ProgressBar:
    """Progress on stderr where that is a terminal.

    Elsewhere it shows nothing and imports nothing: rich takes seconds in an emulated machine.
    """

    def __init__(self, label: str, steps: int) -> None:
        self._progress: Any = None
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._progress = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            "loss {task.fields[loss]:.4f}",
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(label, total=steps, loss=float("nan"))

    def show(self, step: int, loss: float) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=step, loss=loss)

    def __enter__(self) -> _ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def _document(arguments: argparse.Namespace, run: Run, reference: Run | None) -> dict[str, Any]:
    import torch

    return {
        "workload": "wdl",
        "arguments": vars(arguments),
        "torch": torch.__version__,
        "run": run.as_json(),
        "reference": reference.as_json() if reference else None,
    }


def _summary(run: Run) -> str:
    auc = "undefined (one class only)" if run.auc is None else f"{run.auc:.4f}"
    rows = sum(tier.rows for table in run.tables for tier in table.tiers)
    return (
        f"{run.storage_type}: {run.samples:,} samples in {run.steps:,} steps\n"
        f"  samples/s  {run.samples_per_s:,.0f}\n"
        f"  lookups/s  {run.lookups_per_s:,.0f}\n"
        f"  loss       {run.loss:.4f}\n"
        f"  AUC        {auc} on {run.held_out_rows:,} held-out rows\n"
        f"  rows       {rows:,} in {len(run.tables)} tables"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
