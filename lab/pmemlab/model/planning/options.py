"""The options of `pmemlab model plan`; imports neither the engine nor NumPy."""

from __future__ import annotations

import argparse
from pathlib import Path

from pmemlab.model.planning.settings import BATCH_IDS, Settings

__all__ = ["add_options"]


def add_options(parser: argparse.ArgumentParser) -> None:
    table = parser.add_argument_group("one table, and how often its rows are looked up")
    table.add_argument(
        "--rows",
        type=float,
        metavar="N",
        help="number of rows, for example 2e9 (default: as in --ids or --recorded)",
    )
    table.add_argument(
        "--dim", type=int, metavar="N", help="weights of a row (default: as in --recorded)"
    )
    table.add_argument(
        "--optimizer", metavar="NAME", help="optimizer of the rows (default: adagrad)"
    )
    popularity_source = table.add_mutually_exclusive_group()
    popularity_source.add_argument(
        "--skew", type=float, metavar="S", help="exponent of the Zipf distribution of ids"
    )
    popularity_source.add_argument(
        "--ids", type=Path, metavar="FILE", help="NumPy file (.npy) of ids as they are looked up"
    )
    popularity_source.add_argument(
        "--recorded",
        type=Path,
        metavar="FOLDER",
        help="rows of a trained table, with frequencies, as embstore.write_rows writes them",
    )
    several = parser.add_argument_group("several tables")
    several.add_argument(
        "--tables",
        type=Path,
        metavar="FILE",
        help="YAML file with a list of tables, in place of the options above",
    )

    load = parser.add_argument_group("the load")
    load.add_argument(
        "--lookups-per-s",
        type=float,
        required=True,
        metavar="N",
        help="ids a second, duplicates included, of all tables",
    )
    _add(load, "--batch-size", BATCH_IDS, "N", "ids of a step on one machine, of all tables")
    load.add_argument("--serving", action="store_true", help="look-ups only, no training")
    load.add_argument(
        "--cache-strategy",
        choices=("LFU", "LRU"),
        default="LFU",
        help="rule that keeps rows in the upper tier (default: LFU)",
    )

    where = parser.add_argument_group("the media")
    where.add_argument(
        "--storage-types",
        nargs="+",
        metavar="TYPE",
        help="names of embstore.StorageType (default: all that have devices)",
    )
    where.add_argument(
        "--devices",
        nargs="+",
        metavar="[TIER=]DEVICE",
        help="devices to consider: names from `pmemlab model devices`, or files (default: all). "
        "Prefix a name with DRAM=, PMEM= or SSD= if it could serve several tiers",
    )
    where.add_argument(
        "--first-tier-fraction",
        type=float,
        nargs="+",
        default=Settings.first_tier_fractions,
        metavar="F",
        help="share of the rows in the first of several tiers; several values: a plan for each "
        f"(default: {Settings.first_tier_fractions[0]})",
    )
    middle = "share of the rows in the second of three tiers"
    _add(where, "--middle-tier-fraction", Settings.middle_tier_fraction, "F", middle)

    machines = parser.add_argument_group("the machines")
    machines.add_argument(
        "--prices", type=Path, metavar="FILE", help="file of machines and their prices"
    )
    machines.add_argument(
        "--machines", nargs="+", metavar="NAME", help="machines to consider (default: all)"
    )
    threads = "threads of a machine that look up and train"
    _add(machines, "--threads", Settings.threads, "N", threads)
    machines.add_argument(
        "--dram-per-machine", metavar="SIZE", help="most DRAM per machine, for example 128G"
    )
    usable = "share of a machine's media that the table may take"
    _add(machines, "--usable-fraction", Settings.usable_fraction, "F", usable)
    _add(machines, "--max-machines", Settings.max_machines, "N", "largest number of machines")
    machines.add_argument(
        "--cpu-ns-per-lookup",
        type=float,
        metavar="NS",
        help="CPU time for an id, without memory accesses (default: measured in 0.5 s)",
    )

    output = parser.add_argument_group("output")
    _add(output, "--top", 20, "N", "number of plans to print")
    output.add_argument("--json", type=Path, metavar="FILE", help="file for all plans")


def _add(
    group: argparse._ArgumentGroup, option: str, default: float, metavar: str, help: str
) -> None:
    """Adds an option for a number of the default's type."""
    help = f"{help} (default: {default})"
    group.add_argument(option, type=type(default), default=default, metavar=metavar, help=help)
