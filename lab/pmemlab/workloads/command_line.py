"""What the command lines of workloads have in common. Importing it needs no engine."""

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
from pmemlab.workloads.placements import on_devices, predicted_lines

if TYPE_CHECKING:
    import embstore as es
    from pmemlab.workloads.run import Run

__all__ = [
    "NO_PATH",
    "add_count",
    "add_json",
    "add_keeping",
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
"""In --storage-path, in the place of a tier that keeps no files."""

_MOST: Final = 1 << 48
"""Of anything that a command line counts: what is larger no array can have."""


class _DefaultsHelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """A formatter that shows the defaults of options, but not those that stand for no value."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        if isinstance(action.default, (list, tuple)):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)


def new_parser(module: str, description: str) -> argparse.ArgumentParser:
    """Returns a parser for `run_command`. module: what `python -m` is given."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=_DefaultsHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )


def add_storage(parser: argparse.ArgumentParser) -> None:
    """The arguments that `storage_option` reads, which scenarios set."""
    storage = parser.add_argument_group("storage of the embeddings")
    storage.add_argument("--storage-type", default="DRAM", help="a name of embstore.StorageType")
    storage.add_argument(
        "--storage-path",
        nargs="+",
        metavar="PATH",
        help="folders of tiers that keep files: one for all of these, or one for each tier, "
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
        help="train first on this storage type in the same process, to compare with",
    )


def add_count(
    group: Any,
    option: str,
    default: int,
    metavar: str,
    help: str,
    type: Callable[[str], int] | None = None,
) -> None:
    """An option for a whole number. type: by default `positive`."""
    group.add_argument(option, type=type or positive, default=default, metavar=metavar, help=help)


def add_keeping(group: Any, help: str) -> None:
    """--kept-in, which means another kind of save in each workload, and --keep-every."""
    group.add_argument("--kept-in", type=Path, metavar="PATH", help=help)
    add_count(group, "--keep-every", 10, "N", "batches, with --kept-in")


def add_json(parser: argparse.ArgumentParser) -> None:
    """The argument that `print_runs` reads."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a summary"
    )


def storage_option(
    storage_type: str,
    paths: Sequence[str] | None = None,
    size: Sequence[int] | None = None,
    **options: Any,
) -> es.StorageOption:
    """The engine's option. Raises embstore.errors.InvalidArgumentError for an unknown type."""
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
    """Does the work of a command line, and returns its exit status: 2 for bad arguments or data and
    for what the engine refuses, 1 for a run that failed after it began; stderr then says why.

    REQUIRES: the parser is of `new_parser`.
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
    """Returns the exit status of a command that ends with this error; None if it is a mistake of
    the command's own.
    """
    from embstore.errors import EmbStoreError  # only now: a wrong argument costs no import of it
    from pmemlab.errors import LabError
    from pmemlab.workloads.batches import DataError
    from pmemlab.workloads.run import FailedRunError

    if isinstance(error, FailedRunError):
        return 1
    told = (DataError, EmbStoreError, LabError, MemoryError, OSError)
    return 2 if isinstance(error, told) else None


def _program(parser: argparse.ArgumentParser) -> str:
    return parser.prog.rpartition(".")[2]


def print_runs(
    arguments: argparse.Namespace,
    run: Run,
    reference: Run | None,
    facts: Mapping[str, object],
    summary: Callable[[Run], str],
) -> None:
    """What happened, on stdout: one JSON document with --json, else a summary of each run.

    facts: more of the document, as the workload's name.
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
    """For people. sample: what is counted, in the plural. judged: lines that follow the loss."""
    rate = f"{sample}/s"
    lines = [
        f"{run.storage_type}: {run.samples:,} {sample} in {run.steps:,} steps",
        f"  {rate:9}  {run.samples_per_s:,.0f}{on_devices(run.devices)}",
        f"  lookups/s  {run.lookups_per_s:,.0f}",
        f"  loss       {run.loss:.{loss_digits}f}",
        *judged,
    ]
    if run.tables:  # of what others are only compared with, nobody asks
        rows = sum(tier.rows for table in run.tables for tier in table.tiers)
        lines.append(f"  rows       {rows:,} in {len(run.tables)} tables")
    return "\n".join([*lines, *predicted_lines(run.predictions, rate)])


@contextmanager
def training_progress(label: str, steps: int) -> Iterator[Callable[[int, float], None]]:
    """Yields what is to be told each step that is done, and its loss."""
    told = "loss {task.fields[loss]:.4f}"
    with progress_bar(label, steps, told, loss=float("nan")) as show:
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
    if number > _MOST:
        raise argparse.ArgumentTypeError(f"{number} is above {_MOST}")
    return number


def column_keys(text: str) -> int:
    """Returns a number of keys that synthetic columns can have."""
    from pmemlab.workloads.synthetic import MIN_KEYS_PER_COLUMN  # brings NumPy

    keys = positive(text)
    if keys < MIN_KEYS_PER_COLUMN:
        raise argparse.ArgumentTypeError(
            f"{text} is below {MIN_KEYS_PER_COLUMN}, of which the most popular 0.05 % is one"
        )
    return keys


def seed(text: str) -> int:
    """Returns a seed that NumPy, PyTorch and Keras all take."""
    number = _whole_number(text)
    if not 0 <= number < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {(1 << 32) - 1}")
    return number
