"""Kinds of command-line arguments, and the options that they make."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embstore.bench.measure import CLOCKS
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import VARIABLE, check_gpu

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OptionsT = TypeVar("OptionsT", bound="DataclassInstance")


def positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
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
    """cuda, cuda:N or emulated."""
    try:
        return check_gpu("it", text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def options(kind: type[OptionsT], parsed: argparse.Namespace) -> OptionsT:
    """Options of the kind, each field from the argument of its name; a list becomes a tuple."""
    names = [field.name for field in fields(kind) if hasattr(parsed, field.name)]
    given = ((name, getattr(parsed, name)) for name in names)
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in given})


def add_counts(parser: argparse.ArgumentParser, default: object, **helps: str | None) -> None:
    """Adds an argument for a positive integer for each name in `helps`.

    `default` has a field of that name, or of its plural. The argument takes several integers where
    the field is a tuple.
    """
    for name, help in helps.items():
        field = name if hasattr(default, name) else f"{name}s"
        value = getattr(default, field)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest=field,
            metavar=name.upper(),
            type=positive,
            nargs="+" if isinstance(value, tuple) else None,
            default=value,
            help=help,
        )


def add_fraction(parser: argparse.ArgumentParser, name: str, default: float, help: str) -> None:
    parser.add_argument(name, type=proper_fraction, default=default, metavar="FRACTION", help=help)


def add_seed(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--seed", type=seed, default=default)


def add_skew(parser: argparse.ArgumentParser, default: float) -> None:
    parser.add_argument("--skew", type=skew, default=default, help="Zipf's exponent")


def add_device(parser: argparse.ArgumentParser, default: str, help: str) -> None:
    parser.add_argument(
        "--device",
        type=gpu,
        default=os.environ.get(VARIABLE) or default,
        help=f"{help} (default: {VARIABLE} of the environment, else cuda)",
    )


def add_path(
    parser: argparse.ArgumentParser,
    help: str = "where files are made, and removed again; the system's temporary folder by default",
) -> None:
    parser.add_argument("--path", type=folder, metavar="FOLDER", help=help)


def add_clock(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default=default,
        help="what rates are by: `process` is the CPU time of all threads, for a loaded machine",
    )
