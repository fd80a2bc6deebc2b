"""Kinds of command-line arguments."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from embstore.bench.measure import CLOCKS
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import check_gpu


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


def add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path",
        type=folder,
        metavar="FOLDER",
        help="where files are made, and removed again; the system's temporary folder by default",
    )


def add_clock(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default=default,
        help="what rates are by: `process` is the CPU time of all threads, for a loaded machine",
    )
