"""The options of `pmemlab model predict`."""

from __future__ import annotations

import argparse
import math
from typing import Final

__all__ = ["DEFAULT_MINUTES", "add_options"]

DEFAULT_MINUTES: Final = 20.0
_MAX_GPUS = 1024
_MIN_MINUTES, _MAX_MINUTES = 0.1, 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus",
        type=_gpus,
        nargs="+",
        default=[4, 8, 16],
        metavar="N",
        help="numbers of GPUs (default: 4 8 16)",
    )
    parser.add_argument(
        "--cache-gb",
        type=_positive,
        metavar="GB",
        help="DRAM of the cache (default: the paper's 2)",
    )
    parser.add_argument(
        "--skew",
        type=_positive,
        default=1.0,
        metavar="X",
        help="skew relative to the paper's: 2 is steeper, 0.5 flatter (default: 1)",
    )
    parser.add_argument(
        "--checkpoint-minutes",
        type=_minutes,
        default=DEFAULT_MINUTES,
        metavar="M",
        help="training time between checkpoints (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument(
        "--find-row-bytes",
        action="store_true",
        help="print the bytes of a cached row that give the paper's miss rate, and end",
    )


def _gpus(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= _MAX_GPUS):
        raise argparse.ArgumentTypeError(
            f"{text}: must be a whole number between 1 and {_MAX_GPUS}"
        )
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


def _minutes(text: str) -> float:
    value = _positive(text)
    if not _MIN_MINUTES <= value <= _MAX_MINUTES:
        raise argparse.ArgumentTypeError(
            f"{text}: must be between {_MIN_MINUTES:g} and {_MAX_MINUTES:g}"
        )
    return value
