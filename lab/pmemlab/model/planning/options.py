"""The options of `pmemlab model plan`; imports neither the engine nor NumPy."""

from __future__ import annotations

import argparse
from pathlib import Path

from pmemlab.model.planning import defaults

__all__ = ["add_options"]


def add_options(parser: argparse.ArgumentParser) -> None:
    table = parser.add_argument_group("the table")
    table.add_argument("--rows", type=float, required=True, metavar="N", help="as 2e9")
    table.add_argument("--dim", type=int, required=True, metavar="N", help="columns of a row")
    table.add_argument("--optimizer", default="adagrad", metavar="NAME", help="adagrad")

    load = parser.add_argument_group("what is asked of it")
    load.add_argument("--skew", type=float, required=True, metavar="S", help="Zipf's exponent")
    load.add_argument(
        "--lookups-per-s",
        type=float,
        required=True,
        metavar="N",
        help="ids a second, duplicates too",
    )
    load.add_argument(
        "--batch-size",
        type=int,
        default=defaults.BATCH_IDS,
        metavar="N",
        help=f"ids a step, on one machine ({defaults.BATCH_IDS})",
    )
    load.add_argument("--serving", action="store_true", help="look-ups alone, without training")
    load.add_argument(
        "--cache-strategy",
        choices=("LFU", "LRU"),
        default="LFU",
        help="what keeps a row in an upper tier (LFU)",
    )

    where = parser.add_argument_group("where it may lie")
    where.add_argument(
        "--storage-types",
        nargs="+",
        metavar="TYPE",
        help="names of embstore.StorageType, those without HBM (all there are devices for)",
    )
    where.add_argument(
        "--devices",
        nargs="+",
        metavar="[TIER=]DEVICE",
        help="of `pmemlab model devices` (all), or paths of one's own; TIER: DRAM, PMEM or SSD, "
        "where it isn't to be told from the device",
    )
    where.add_argument(
        "--first-tier-fraction",
        type=float,
        nargs="+",
        default=[defaults.FIRST_TIER_FRACTION],
        metavar="F",
        help=f"of all rows, in the first of several tiers; several: a plan each "
        f"({defaults.FIRST_TIER_FRACTION})",
    )
    where.add_argument(
        "--middle-tier-fraction",
        type=float,
        default=defaults.MIDDLE_TIER_FRACTION,
        metavar="F",
        help=f"of all rows, in the second of three tiers ({defaults.MIDDLE_TIER_FRACTION})",
    )

    machines = parser.add_argument_group("the machines")
    machines.add_argument("--prices", type=Path, metavar="FILE", help="machines and their prices")
    machines.add_argument("--machines", nargs="+", metavar="NAME", help="of that file, these alone")
    machines.add_argument(
        "--threads",
        type=int,
        default=defaults.THREADS,
        metavar="N",
        help=f"of a machine that look up and train ({defaults.THREADS})",
    )
    machines.add_argument(
        "--dram-per-machine", metavar="SIZE", help="that the table may take, as 128G"
    )
    machines.add_argument(
        "--usable-fraction",
        type=float,
        default=defaults.USABLE_FRACTION,
        metavar="F",
        help=f"of what a machine holds that the table may take ({defaults.USABLE_FRACTION})",
    )
    machines.add_argument(
        "--max-machines",
        type=int,
        default=defaults.MAX_MACHINES,
        metavar="N",
        help=f"more don't fit ({defaults.MAX_MACHINES})",
    )
    machines.add_argument(
        "--cpu-ns-per-lookup",
        type=float,
        metavar="NS",
        help="the CPU's own work on an id, memory aside (default: measured here, in 0.5 s)",
    )

    output = parser.add_argument_group("what is printed")
    output.add_argument("--top", type=int, default=20, metavar="N", help="the first N plans (20)")
    output.add_argument("--json", type=Path, metavar="FILE", help="write all plans there too")
