"""The command that trains Wide & Deep on Criteo rows: `python -m pmemlab.workloads.wdl`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pmemlab.workloads.batches import DataError, Source
from pmemlab.workloads.command_line import (
    add_checkpoint_options,
    add_count,
    add_json,
    add_storage,
    new_parser,
    positive,
    print_runs,
    run_command,
    seed,
    storage_option,
    summary_of,
    training_progress,
)
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.criteo_file import write_raw
from pmemlab.workloads.placements import add_placements, load_placements
from pmemlab.workloads.synthetic import MIN_KEYS_PER_COLUMN, SyntheticSource
from pmemlab.workloads.wide_and_deep import DENSE_LIBRARIES

if TYPE_CHECKING:
    from embstore.options import StorageOption
    from pmemlab.workloads.model_keeping import ModelCheckpoints
    from pmemlab.workloads.run import Run
    from pmemlab.workloads.steps import RunOptions

PREPARED: Final = (
    "pmemlab.workloads.model_keeping",
    "pmemlab.workloads.training",
    "pmemlab.workloads.wide_and_deep.numpy_network",
)
"""The modules that a run imports, for a process that imports them once for several runs."""
SYNTHETIC: Final = "synthetic"
CRITEO_FILE: Final = "criteo-file"
TABLES: Final = 52
"""The number of a model's tables; each of them gets the whole --storage-size."""


def table_count(arguments: Mapping[str, Any]) -> int:
    """Returns the number of tables of a run. arguments: values by option name without dashes."""
    del arguments
    return TABLES


def checkpoint_refusal(storage_type: str) -> str | None:
    """Returns why --kept-in is impossible with this storage type; None if it is possible."""
    from embstore.options import StorageType
    from pmemlab.workloads.model_keeping import model_checkpoint_refusal

    return model_checkpoint_refusal(StorageType[storage_type])


def argument_parser() -> argparse.ArgumentParser:
    """Returns the command line's parser; needs neither PyTorch nor the engine."""
    parser = new_parser(
        "pmemlab.workloads.wdl",
        "Train Wide & Deep on Criteo rows with the embeddings on a storage type.",
    )
    add_storage(parser)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        default=SYNTHETIC,
        metavar="FILE",
        help=f"a Criteo file, or {SYNTHETIC!r}, or {CRITEO_FILE!r}: synthetic rows that are first "
        "written to a file in Criteo's format, then read from it",
    )
    add_count(
        data,
        "--keys-per-column",
        100_000,
        "N",
        f"different keys of a synthetic column, {MIN_KEYS_PER_COLUMN} or more",
    )
    add_count(
        data,
        "--held-out-rows",
        10_000,
        "N",
        "held-out rows of synthetic data, for the AUC; of a file every tenth row is held out",
    )
    data.add_argument(
        "--fill",
        action="store_true",
        help="give every key of the synthetic columns a row before the first step",
    )
    training = parser.add_argument_group("training")
    add_count(training, "--steps", 100, "N", "batches to train on")
    add_count(training, "--warm-up-steps", 1, "N", "first steps, which aren't timed")
    add_count(training, "--batch-size", 512, "ROWS", "rows per batch")
    add_count(training, "--embedding-dim", 16, "D", "weights of a row")
    training.add_argument(
        "--hidden-units",
        type=positive,
        nargs="+",
        default=[1024, 512, 256],
        metavar="UNITS",
        help="widths of the deep part's layers",
    )
    training.add_argument(
        "--dense",
        choices=DENSE_LIBRARIES,
        default="torch",
        help="library of the dense layers; on an emulated machine, importing PyTorch takes longer "
        "than a short training",
    )
    add_count(training, "--seed", 2021, "N", "seed of the data and the weights", type=seed)
    kept = parser.add_argument_group("checkpoints")
    add_checkpoint_options(
        kept,
        "folder for regular checkpoints and the durable pools of rows; the run resumes from the "
        "newest checkpoint there. A tier on SSD below the pools lies at --storage-path",
    )
    add_placements(parser)
    add_json(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for bad arguments or data, 1 for a bad run."""
    return run_command(argument_parser(), argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run_on(_source(arguments, Path(folder)), arguments)


def _run_on(source: Source, arguments: argparse.Namespace) -> None:
    # Imported late: a wrong argument should not cost an import of PyTorch.
    import embstore as es
    from pmemlab.workloads.model_keeping import ModelCheckpoints
    from pmemlab.workloads.steps import RunOptions

    checkpointing = (
        ModelCheckpoints(arguments.kept_in, arguments.keep_every) if arguments.kept_in else None
    )
    subject = storage_option(
        arguments.storage_type,
        arguments.storage_path,
        arguments.storage_size,
        ssdhash_option=es.SSDHashOption(direct_io=True) if arguments.direct_io else None,
    )
    placements = load_placements(arguments)
    subject = placements.applied_to(subject)
    if checkpointing:
        subject = checkpointing.durable(subject)
    reference = None
    if arguments.reference:
        every = checkpointing.every if checkpointing else None
        compared = storage_option(arguments.reference)
        reference = _train(compared, source, arguments, RunOptions(every, bits_only=True))
    run = _train(subject, source, arguments, RunOptions(placements=placements), checkpointing)
    # Without importlib.metadata, whose import takes half a second on an emulated machine.
    version = import_module(arguments.dense).__version__
    facts = {"workload": "wdl", arguments.dense: version}
    print_runs(arguments, run, reference, facts, _summary)


def _source(arguments: argparse.Namespace, folder: Path) -> Source:
    if arguments.fill and arguments.data != SYNTHETIC:
        raise DataError(f"--fill: the keys of --data {arguments.data} aren't known before")
    if arguments.data not in (SYNTHETIC, CRITEO_FILE):
        return CriteoSource(Path(arguments.data))
    synthetic = SyntheticSource(
        seed=arguments.seed,
        keys_per_column=arguments.keys_per_column,
        held_out_rows=arguments.held_out_rows,
    )
    if arguments.data == SYNTHETIC:
        return synthetic
    path = folder / "criteo.txt"
    rows = max(arguments.steps * arguments.batch_size * 10 // 9, arguments.held_out_rows * 10)
    write_raw(path, synthetic, rows)
    return CriteoSource(path)


def _train(
    storage: StorageOption,
    source: Source,
    arguments: argparse.Namespace,
    options: RunOptions,
    checkpointing: ModelCheckpoints | None = None,
) -> Run:
    from pmemlab.workloads.training import train
    from pmemlab.workloads.wide_and_deep.tables import EmbeddingTables, ModelOptions

    def fill(tables: EmbeddingTables) -> None:
        if arguments.fill:
            assert isinstance(source, SyntheticSource)
            tables.fill(source.keys_of_column)

    model = ModelOptions(
        arguments.embedding_dim, tuple(arguments.hidden_units), seed=arguments.seed
    )
    with training_progress(storage.storage_type.name, arguments.steps) as progress:
        return train(
            source,
            storage,
            steps=arguments.steps,
            batch_size=arguments.batch_size,
            model=model,
            options=replace(options, progress=progress),
            dense=arguments.dense,
            checkpointing=checkpointing,
            fill=fill,
            warm_up_steps=arguments.warm_up_steps,
        )


def _summary(run: Run) -> str:
    auc = "undefined (one class only)" if run.auc is None else f"{run.auc:.4f}"
    judged = f"  AUC        {auc} on {run.held_out_rows:,} held-out rows"
    return summary_of(run, "samples", 4, [judged])


if __name__ == "__main__":
    sys.exit(main())
