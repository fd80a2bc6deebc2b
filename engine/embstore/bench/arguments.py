"""Command-line arguments of suites: dataclass fields that are annotated with an Argument.

rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 1_000_000
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from embstore.bench.contenders import KEYS
from embstore.bench.measure import CLOCKS
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import VARIABLE, check_gpu

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OptionsT = TypeVar("OptionsT", bound="DataclassInstance")


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text}")
    return value


def seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return value


def skew(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be finite, 0 or more, got {text}")
    return value


def proper_fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text}")
    return value


def folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no directory")
    return Path(text)


def gpu(text: str) -> str:
    """Returns the name of a GPU: cuda, cuda:N or emulated."""
    try:
        return check_gpu("it", text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class Argument:
    """The command-line argument of a field. A tuple takes one or more values.

    flag: None: the field's name. variable: name of the environment variable that overrides the
    default.
    """

    help: str | None = None
    type: Callable[[str], object] = str
    flag: str | None = None
    metavar: str | None = None
    choices: Sequence[str] | None = None
    variable: str | None = None

    def add_to(self, parser: argparse.ArgumentParser, field: str, default: object) -> None:
        flag = self.flag or field.replace("_", "-")
        if default is False:
            parser.add_argument(f"--{flag}", dest=field, action="store_true", help=self.help)
            return
        parser.add_argument(
            f"--{flag}",
            dest=field,
            type=self.type,
            nargs="+" if isinstance(default, tuple) else None,
            choices=self.choices,
            default=os.environ.get(self.variable or "") or default,
            metavar=self.metavar or (None if self.choices else flag.upper().replace("-", "_")),
            help=self.help,
        )


def count(help: str | None = None, flag: str | None = None) -> Argument:
    """Returns an argument that takes a positive integer."""
    return Argument(help, positive, flag)


def fraction(help: str) -> Argument:
    return Argument(help, proper_fraction, metavar="FRACTION")


def device(help: str) -> Argument:
    help = f"{help} (default: the environment's {VARIABLE}, else cuda)"
    return Argument(help, gpu, variable=VARIABLE)


def path(
    help: str = "folder for temporary files (default: the system's temporary folder)",
) -> Argument:
    return Argument(help, folder, metavar="FOLDER")


SEED = Argument("seed of random numbers (default: %(default)s)", seed)
SKEW = Argument("exponent of the Zipf distribution of ids (default: %(default)s)", skew)
KEY_KIND = Argument(
    "kind of ids: hashed values of 64 bits, or dense numbers of a vocabulary (default: "
    "%(default)s)",
    choices=tuple(KEYS),
)
CLOCK = Argument(
    "clock of rates: wall time, or `process`, the CPU time of all threads, for a loaded machine "
    "(default: %(default)s)",
    choices=tuple(CLOCKS),
)


def add_arguments(parser: argparse.ArgumentParser, kind: type[DataclassInstance]) -> None:
    """Adds the arguments of a dataclass's fields that are annotated with an Argument."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        for argument in getattr(hints[field.name], "__metadata__", ()):
            argument.add_to(parser, field.name, field.default)


def options(kind: type[OptionsT], parsed: argparse.Namespace) -> OptionsT:
    """Returns a dataclass with each field from the argument of its name; lists become tuples."""
    given: dict[str, Any] = vars(parsed)
    names = [field.name for field in fields(kind) if field.name in given]
    values = [given[name] for name in names]
    values = [tuple(value) if isinstance(value, list) else value for value in values]
    return kind(**dict(zip(names, values, strict=True)))
