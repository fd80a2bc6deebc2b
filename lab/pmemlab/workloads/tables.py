"""The command that trains embedding tables alone: `python -m pmemlab.workloads.tables`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pmemlab.workloads.batches import DataError
from pmemlab.workloads.command_line import (
    add_checkpoint_options,
    add_count,
    add_json,
    add_storage,
    column_keys,
    new_parser,
    not_negative,
    positive,
    print_runs,
    run_command,
    seed,
    storage_option,
    summary_of,
    training_progress,
)
from pmemlab.workloads.placements import Placements, add_placements, load_placements
from pmemlab.workloads.synthetic import MIN_KEYS_PER_COLUMN

if TYPE_CHECKING:
    import embstore as es
    from pmemlab.workloads.run import Run
    from pmemlab.workloads.table_training import Rows

PREPARED: Final = ("pmemlab.workloads.table_training",)
"""The modules that a run imports, for a process that imports them once for several runs."""
_TABLES: Final = 2
_FILTERS = re.compile(r"(counter|cbf):([1-9][0-9]*)")


def table_count(arguments: Mapping[str, Any]) -> int:
    """Returns the number of tables of a run. arguments: values by option name without dashes."""
    return int(arguments.get("tables", _TABLES))


def checkpoint_refusal(storage_type: str) -> str | None:
    """Returns why --kept-in is impossible with this storage type; None if it is possible."""
    del storage_type  # every type can be saved
    return None


def argument_parser() -> argparse.ArgumentParser:
    """Returns the command line's parser; needs no engine."""
    parser = new_parser(
        "pmemlab.workloads.tables", "Train embedding tables by themselves, on a storage type."
    )
    add_storage(parser)
    engine = parser.add_argument_group("the engine's options")
    engine.add_argument(
        "--cache-strategy",
        choices=("LFU", "LRU"),
        default="LFU",
        help="row that leaves a full tier: the least frequently or the least recently used",
    )
    engine.add_argument(
        "--ssdhash-buffer",
        type=positive,
        metavar="BYTES",
        help="write buffer of every table with an SSDHASH tier (default: the engine's own)",
    )
    engine.add_argument(
        "--filter",
        type=_filter,
        metavar="KIND:N",
        help="filter that admits a key at its Nth occurrence, counted exactly (counter) or by a "
        "sketch (cbf)",
    )
    training = parser.add_argument_group("tables and training")
    add_count(training, "--tables", _TABLES, "N", "number of tables")
    add_count(
        training,
        "--rows",
        30_000,
        "N",
        f"keys of each table, {MIN_KEYS_PER_COLUMN} or more",
        type=column_keys,
    )
    add_count(training, "--embedding-dim", 16, "D", "weights of a row")
    add_count(training, "--steps", 40, "N", "skewed batches, after those that have every key once")
    add_count(training, "--batch-size", 2048, "IDS", "ids per batch and table")
    add_count(training, "--seed", 2021, "N", "seed of the ids and the rows", type=seed)
    add_count(
        training,
        "--cold-lookups",
        2000,
        "N",
        "rows of each table's last tier that are looked up at the end, uncached",
        type=not_negative,
    )
    saves = parser.add_argument_group("saves")
    saves.add_argument("--restore", type=Path, metavar="PATH", help="save to resume from")
    add_checkpoint_options(
        saves, "folder for regular saves; the run resumes from the newest save that is there"
    )
    saves.add_argument("--save", type=Path, metavar="PATH", help="folder of a save at the end")
    saves.add_argument(
        "--stop-after", type=positive, metavar="N", help="number of the last batch, from 1"
    )
    add_placements(parser)
    add_json(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for bad arguments or what the engine refuses."""
    return run_command(argument_parser(), argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.kept_in and arguments.restore:
        raise DataError("--kept-in: goes on from its own saves, not from --restore")
    subject = _subject(arguments)
    placements = load_placements(arguments)
    subject = placements.applied_to(subject)
    reference = learnt = None
    if arguments.reference:
        reference, learnt = _train(storage_option(arguments.reference), arguments)
    run, _ = _train(subject, arguments, learnt, placements)
    print_runs(arguments, run, reference, {"workload": "tables"}, _summary)


def _subject(arguments: argparse.Namespace) -> es.StorageOption:
    import embstore as es
    from embstore.options import TIER_KINDS, TierKind

    is_known = arguments.storage_type in es.StorageType.__members__
    options: dict[str, Any] = {"cache_strategy": es.CacheStrategy[arguments.cache_strategy]}
    kinds = TIER_KINDS[es.StorageType[arguments.storage_type]] if is_known else ()
    if TierKind.SSDHASH in kinds:
        ssdhash = es.SSDHashOption(direct_io=arguments.direct_io)
        if arguments.ssdhash_buffer is not None:
            ssdhash = replace(ssdhash, buffer_bytes=arguments.ssdhash_buffer)
        options["ssdhash_option"] = ssdhash
    return storage_option(
        arguments.storage_type, arguments.storage_path, arguments.storage_size, **options
    )


def _train(
    storage: es.StorageOption,
    arguments: argparse.Namespace,
    expected_rows: Rows | None = None,
    placements: Placements | None = None,
) -> tuple[Run, Rows]:
    """Trains one run. placements: None for the reference run."""
    from pmemlab.workloads.keeping import PeriodicSaves
    from pmemlab.workloads.steps import RunOptions
    from pmemlab.workloads.table_training import TableOptions, train

    kind, frequency = arguments.filter or ("", 0)
    table_options = TableOptions(
        tables=arguments.tables,
        rows=arguments.rows,
        dim=arguments.embedding_dim,
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        filter_frequency=frequency,
        counts_by_sketch=kind == "cbf",
        cold_lookups=arguments.cold_lookups,
    )
    batches = -(-table_options.rows // table_options.batch_size) + table_options.steps
    checkpointing = (
        PeriodicSaves(arguments.kept_in, arguments.keep_every) if arguments.kept_in else None
    )
    with training_progress(storage.storage_type.name, batches) as progress:
        if placements is None:
            every = checkpointing.every if checkpointing else None
            options = RunOptions(every, bits_only=True, progress=progress)
            return train(storage, table_options, options, stop_after=arguments.stop_after)
        return train(
            storage,
            table_options,
            RunOptions(placements=placements, progress=progress),
            restore=arguments.restore,
            save=arguments.save,
            stop_after=arguments.stop_after,
            checkpointing=checkpointing,
            expected_rows=expected_rows,
        )


def _summary(run: Run) -> str:
    return summary_of(run, "ids", 6)


def _filter(text: str) -> tuple[str, int]:
    match = _FILTERS.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is neither counter:N nor cbf:N")
    return match[1], int(match[2])


if __name__ == "__main__":
    sys.exit(main())
