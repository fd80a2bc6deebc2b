"""The parts that command lines of workloads share. Importing this module needs no engine."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pmemlab.command_end import exit_status_of
from pmemlab.progress_bar import progress_bar
from pmemlab.workloads.placements import on_devices_text, predicted_lines

if TYPE_CHECKING:
    import embstore as es
    from pmemlab.workloads.run import Run

__all__ = [
    "NO_PATH",
    "add_checkpoint_options",
    "add_count",
    "add_json",
    "add_storage",
    "column_keys",
    "new_parser",
    "not_negative",
    "positive",
    "positive_number",
    "print_runs",
    "run_command",
    "seed",
    "storage_option",
    "summary_of",
    "training_progress",
]

NO_PATH: Final = "-"
"""The value in --storage-path for a tier that keeps no files."""

_MAX_COUNT: Final = 1 << 48
"""The largest count that a command line accepts; no array can be larger."""


class _DefaultsHelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """A formatter that shows an option's default, unless the default means "no value"."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        if isinstance(action.default, (list, tuple)):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


def new_parser(module: str, description: str) -> argparse.ArgumentParser:
    """Returns a parser for `run_command`. module: the module's name, as in `python -m`."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=_DefaultsHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `storage_option` reads; scenarios set them."""
    storage = parser.add_argument_group("storage of the embeddings")
    storage.add_argument("--storage-type", default="DRAM", help="a name of embstore.StorageType")
    storage.add_argument(
        "--storage-path",
        nargs="+",
        metavar="PATH",
        help="folders of the tiers that keep files: one for all of them, or one for each tier, "
        f"first tier first, and {NO_PATH} for those that keep none",
    )
    storage.add_argument(
        "--storage-size",
        type=positive,
        nargs="+",
        metavar="BYTES",
        help="bytes for each tier of every table, first tier first",
    )
    storage.add_argument(
        "--reference",
        metavar="TYPE",
        help="storage type to train on first, in the same process, to compare the results with",
    )


def add_count(
    group: Any,
    option: str,
    default: int,
    metavar: str,
    help: str,
    type: Callable[[str], int] | None = None,
) -> None:
    """Adds an option for a whole number. type: `positive` by default."""
    group.add_argument(option, type=type or positive, default=default, metavar=metavar, help=help)


def add_checkpoint_options(group: Any, help: str) -> None:
    """Adds --kept-in, whose kind of save depends on the workload, and --keep-every."""
    group.add_argument("--kept-in", type=Path, metavar="PATH", help=help)
    add_count(group, "--keep-every", 10, "N", "batches between two saves of --kept-in")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that `print_runs` reads."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a summary"
    )


def storage_option(
    storage_type: str,
    paths: Sequence[str] | None = None,
    size: Sequence[int] | None = None,
    **options: Any,
) -> es.StorageOption:
    """Returns a storage option. Raises embstore.errors.InvalidArgumentError for an unknown type."""
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
        storage_type=member, storage_path=path or of_tiers or None, storage_size=size, **options
    )


def run_command(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    work: Callable[[argparse.Namespace], object],
) -> int:
    """Parses a command line, runs `work`, and returns the exit status: 2 for bad arguments or data
    and for errors of the engine, 1 for a run that failed after it began; stderr then says why.

    REQUIRES: `new_parser` made the parser.
    """
    program = _program(parser)

    def parse_and_work() -> int:
        try:
            arguments = parser.parse_args(argv)
        except argparse.ArgumentError as error:
            parser.print_usage(sys.stderr)
            print(f"{program}: {error}", file=sys.stderr)
            return 2
        work(arguments)
        return 0

    try:
        return exit_status_of(parse_and_work)
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        what = "not enough memory: " if isinstance(error, MemoryError) else ""
        print(f"{program}: {what}{error}", file=sys.stderr)
        return status


def _status_of(error: Exception) -> int | None:
    """Returns the exit status of a command that ends with this error; None if the error is a bug of
    the command itself.
    """
    from embstore.errors import EmbStoreError  # late: a wrong argument costs no import of it
    from pmemlab.errors import LabError
    from pmemlab.workloads.batches import DataError
    from pmemlab.workloads.run import FailedRunError

    if isinstance(error, FailedRunError):
        return 1
    expected_errors = (DataError, EmbStoreError, LabError, MemoryError, OSError)
    return 2 if isinstance(error, expected_errors) else None


def _program(parser: argparse.ArgumentParser) -> str:
    return parser.prog.rpartition(".")[2]


def print_runs(
    arguments: argparse.Namespace,
    run: Run,
    reference: Run | None,
    facts: Mapping[str, object],
    summary: Callable[[Run], str],
) -> None:
    """Prints the runs on stdout: one JSON document with --json, else a summary of each run.

    facts: more entries of the document, for example the workload's name.
    """
    if not arguments.json:
        for shown in filter(None, (reference, run)):
            print(summary(shown))
        return
    document = {
        **facts,
        "arguments": {name: str(value) for name, value in vars(arguments).items()},
        "run": run.as_json(),
        "reference": reference.as_json() if reference else None,
    }
    print(json.dumps(document))


def summary_of(run: Run, sample: str, loss_digits: int, judged: Sequence[str] = ()) -> str:
    """Returns a run's summary as text. sample: the counted unit, in the plural. judged: lines after
    the loss.
    """
    rate = f"{sample}/s"
    lines = [
        f"{run.storage_type}: {run.samples:,} {sample} in {run.steps:,} steps",
        f"  {rate:9}  {run.samples_per_s:,.0f}{on_devices_text(run.devices)}",
        f"  lookups/s  {run.lookups_per_s:,.0f}",
        f"  loss       {run.loss:.{loss_digits}f}",
        *judged,
    ]
    if run.tables:  # a reference run has none
        rows = sum(tier.rows for table in run.tables for tier in table.tiers)
        lines.append(f"  rows       {rows:,} in {len(run.tables)} tables")
    return "\n".join([*lines, *predicted_lines(run.predictions, rate)])


@contextmanager
def training_progress(label: str, steps: int) -> Iterator[Callable[[int, float], None]]:
    """Yields a function to call after each step, with the step's number and its loss."""
    column = "loss {task.fields[loss]:.4f}"
    with progress_bar(label, steps, column, loss=float("nan")) as show:
        yield lambda step, loss: show(completed=step, loss=loss)


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no finite number above 0")
    return number


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no whole number") from None


def positive(text: str) -> int:
    number = _whole_number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return _bounded(number)


def not_negative(text: str) -> int:
    number = _whole_number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return _bounded(number)


def _bounded(number: int) -> int:
    if number > _MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{number} is above {_MAX_COUNT}")
    return number


def column_keys(text: str) -> int:
    """Parses the number of keys of a synthetic column, MIN_KEYS_PER_COLUMN or more."""
    from pmemlab.workloads.synthetic import MIN_KEYS_PER_COLUMN  # imports NumPy

    keys = positive(text)
    if keys < MIN_KEYS_PER_COLUMN:
        raise argparse.ArgumentTypeError(
            f"{text} is below {MIN_KEYS_PER_COLUMN}, of which the most popular 0.05 % is one"
        )
    return keys


def seed(text: str) -> int:
    """Parses a seed that NumPy, PyTorch and Keras all accept."""
    number = _whole_number(text)
    if not 0 <= number < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {(1 << 32) - 1}")
    return number
