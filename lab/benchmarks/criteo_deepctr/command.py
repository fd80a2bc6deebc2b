"""The command line: `python -m benchmarks.criteo_deepctr`."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.criteo_deepctr.epochs import Epochs, FileEpochs, GeneratedEpochs
from benchmarks.criteo_deepctr.options import (
    CIN_MAPS,
    HIDDEN_UNITS,
    OPTIMIZERS,
    ModelOptions,
    TableOptions,
    TrainingOptions,
)
from pmemlab.progress_bar import progress_bar
from pmemlab.whole_file import check_output, write_output
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.command_line import (
    NO_PATH,
    add_count,
    new_parser,
    positive,
    positive_number,
    run_command,
    seed,
    storage_option,
)
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.synthetic import MIN_KEYS_PER_COLUMN, SyntheticSource

if TYPE_CHECKING:
    from benchmarks.criteo_deepctr.training import Result, State

__all__ = ["argument_parser", "main"]

ALL_DIMS: Final = (9, 64)


def argument_parser() -> argparse.ArgumentParser:
    """Returns the command line's parser; needs neither Keras nor the engine."""
    parser = new_parser(
        "benchmarks.criteo_deepctr",
        "Train WDL, DeepFM or xDeepFM on Criteo rows, in Keras over embstore's tables. "
        "Keras runs on PyTorch unless KERAS_BACKEND says otherwise.",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="file of rows as Criteo publishes them, or label-encoded; every tenth row is held out",
    )
    data.add_argument(
        "--generated",
        type=positive,
        metavar="ROWS",
        help="number of generated rows to train on instead; their ids are as skewed as a real "
        "recommender's, and their labels follow from their ids",
    )
    add_count(
        data,
        "--keys_per_column",
        100_000,
        "N",
        f"different ids of a generated feature, {MIN_KEYS_PER_COLUMN} or more",
    )
    add_count(
        data,
        "--held_out_rows",
        10_000,
        "N",
        "held-out rows for the AUC; of a file the first ones that are held out",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", choices=list(HIDDEN_UNITS), help="model to train (default: DeepFM)"
    )
    model.add_argument(
        "--embedding_dim", type=positive, metavar="D", help="weights of a row (default: 9)"
    )
    model.add_argument(
        "--hidden_units",
        type=positive,
        nargs="+",
        default=[],
        metavar="UNITS",
        help="widths of the deep part's layers (default: 512 256 128 32 for WDL, else 400 400 400)",
    )
    model.add_argument(
        "--cin_maps",
        type=positive,
        nargs="+",
        default=list(CIN_MAPS),
        metavar="MAPS",
        help="widths of the layers of xDeepFM's CIN",
    )
    model.add_argument(
        "--all",
        action="store_true",
        help=f"train each model with dims {' and '.join(map(str, ALL_DIMS))}, one after the other",
    )
    training = parser.add_argument_group("training")
    add_count(training, "--batch_size", 4096, "ROWS", "rows per batch")
    add_count(training, "--epochs", 1, "N", "epochs in all")
    training.add_argument(
        "--optimizer",
        choices=list(OPTIMIZERS),
        default="Adagrad",
        help="optimizer of rows and dense parameters",
    )
    training.add_argument(
        "--learning_rate",
        type=positive_number,
        metavar="RATE",
        help=f"step size (default: {', '.join(f'{r} for {o}' for o, r in OPTIMIZERS.items())})",
    )
    add_count(training, "--seed", 0, "N", "seed of the data and the weights", type=seed)
    add_count(
        training,
        "--judge_every",
        200,
        "STEPS",
        "steps between two evaluations on the held-out rows",
    )
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--server", action="store_true", help="keep the tables in other processes, by Ray"
    )
    tables.add_argument(
        "--shards", type=positive, metavar="N", help="processes of each table (default: 1)"
    )
    tables.add_argument(
        "--master_endpoint",
        metavar="IP:PORT",
        help="address of the Ray cluster (default: the one that RAY_ADDRESS names, or one of this "
        "computer alone)",
    )
    tables.add_argument("--storage_type", default="DRAM", help="name of embstore.StorageType")
    tables.add_argument(
        "--storage_path",
        nargs="+",
        metavar="PATH",
        help="folders of tiers that keep files: one for all, or one for each tier, first tier "
        f"first; {NO_PATH} for a tier without files",
    )
    tables.add_argument(
        "--storage_size",
        type=positive,
        nargs="+",
        metavar="BYTES",
        help="bytes for each tier of every table (there are two), first tier first",
    )
    tables.add_argument(
        "--workers",
        type=positive,
        nargs="+",
        metavar="N",
        help="processes that train together on shared tables; with --checkpoint they resume by "
        "themselves when one of them or a table's process dies; several numbers with --all, one "
        "after the other (default: 1)",
    )
    kept = parser.add_argument_group("outputs and checkpoints")
    kept.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="folder of a checkpoint after each epoch"
    )
    kept.add_argument("--load", type=Path, metavar="FOLDER", help="checkpoint to resume from")
    kept.add_argument(
        "--save", type=Path, metavar="FILE", help="file for the model and its rows, named *.keras"
    )
    kept.add_argument("--json", type=Path, metavar="FILE", help="file for the results")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for bad arguments or data, 1 for a bad run."""
    return run_command(argument_parser(), argv, _run)


def _check(arguments: argparse.Namespace) -> None:
    given = {name for name, value in vars(arguments).items() if value not in (None, False)}

    def refuse_without(needed: str, *names: str) -> None:
        for name in names:
            if name in given and needed not in given:
                raise DataError(f"--{name} is of use with --{needed} only")

    if arguments.data is None and arguments.generated is None:
        raise DataError("--data is missing: give a file of Criteo's rows, or --generated ROWS")
    if arguments.data is not None and arguments.generated is not None:
        raise DataError("--data and --generated: give one of them")
    refuse_without("server", "shards", "master_endpoint", "workers")
    _check_job_checkpoint(arguments)
    if arguments.all:
        for name in ("model", "embedding_dim", "checkpoint", "load", "save"):
            if getattr(arguments, name):
                raise DataError(f"--{name} is of one model, and --all trains several")
    if arguments.save is not None and arguments.save.suffix != ".keras":
        raise DataError(f"--save {arguments.save}: the name must end with .keras")
    kept = arguments.checkpoint
    if kept is not None and not kept.absolute().parent.is_dir():
        raise DataError(f"--checkpoint {kept}: there is no folder {kept.absolute().parent}")
    if kept is not None and kept.exists() and not kept.is_dir():
        raise DataError(f"--checkpoint {kept}: is a file; give a folder")
    check_output("--save", arguments.save)
    check_output("--json", arguments.json)


def _check_job_checkpoint(arguments: argparse.Namespace) -> None:
    """Checks --checkpoint and --load of workers, which would take another run's checkpoint for
    theirs. Raises DataError.
    """
    if arguments.workers in (None, [1]):
        return
    if len(arguments.workers) > 1 and not arguments.all:
        raise DataError("--workers: several numbers are for --all only")
    kept, load = arguments.checkpoint, arguments.load
    if load is not None and load != kept:
        raise DataError(f"--load {load}: with --workers give --checkpoint {load} too")
    if load is None and kept is not None and kept.is_dir() and any(kept.iterdir()):
        raise DataError(
            f"--checkpoint {kept} has something already; give --load {kept} to go on from it, or "
            "another folder"
        )


def _epochs(arguments: argparse.Namespace) -> Epochs:
    if arguments.data is not None:
        try:
            return FileEpochs(CriteoSource(arguments.data), arguments.held_out_rows)
        except DataError as error:
            raise DataError(f"--data: {error}") from None
    source = SyntheticSource(
        seed=arguments.seed,
        keys_per_column=arguments.keys_per_column,
        held_out_rows=arguments.held_out_rows,
    )
    return GeneratedEpochs(source, arguments.generated)


def _run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    epochs = _epochs(arguments)
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from benchmarks.criteo_deepctr.table import as_table

    tables = _tables(arguments)
    results: list[Result] = []
    for (name, dim), workers in itertools.product(_models(arguments), arguments.workers or [1]):
        results.append(_train(arguments, epochs, tables, name, dim, workers))
        _free_model()
        if arguments.json:
            _write_json(arguments, results)
    print(as_table(results))


def _models(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    if arguments.all:
        return list(itertools.product(HIDDEN_UNITS, ALL_DIMS))
    return [(arguments.model or "DeepFM", arguments.embedding_dim or 9)]


def _tables(arguments: argparse.Namespace) -> TableOptions:
    storage = storage_option(arguments.storage_type, arguments.storage_path, arguments.storage_size)
    if not arguments.server:
        return TableOptions(storage)
    if arguments.master_endpoint:
        from embstore.cluster.ray.head_probe import check_answers

        check_answers("--master_endpoint", arguments.master_endpoint)
        os.environ["RAY_ADDRESS"] = arguments.master_endpoint  # embstore.cluster reads it
    return TableOptions(storage, arguments.shards or 1)


def _train(
    arguments: argparse.Namespace,
    epochs: Epochs,
    tables: TableOptions,
    name: str,
    dim: int,
    workers: int,
) -> Result:
    from benchmarks.criteo_deepctr.joint_training import train_with_workers
    from benchmarks.criteo_deepctr.training import train

    model = ModelOptions(
        name, dim, tuple(arguments.hidden_units), tuple(arguments.cin_maps), arguments.seed
    )
    options = TrainingOptions(
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        optimizer=arguments.optimizer,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
        judge_every=arguments.judge_every,
        checkpoint=arguments.checkpoint,
        load=arguments.load,
        save=arguments.save,
    )
    with _progress(f"{name}, dim {dim}", epochs.rows_to_train()) as on_progress:
        if workers > 1:
            return train_with_workers(epochs, model, tables, options, workers, on_progress)
        return train(epochs, model, tables, options, on_progress=on_progress)


@contextmanager
def _progress(label: str, rows_to_train: int) -> Iterator[Callable[[State], None]]:
    """Yields a function to call after each step. rows_to_train: per epoch, as far as known."""
    with progress_bar(label, rows_to_train, "{task.fields[figures]}", figures="") as show:

        def on_progress(state: State) -> None:
            auc = "" if state.auc is None else f"  AUC {state.auc:.4f}"
            show(
                description=f"{label}, epoch {state.epoch + 1}",
                completed=state.rows,
                total=max(rows_to_train, state.rows),
                figures=f"{state.samples_per_s:,.0f} samples/s  loss {state.loss:.4f}{auc}",
            )

        yield on_progress


def _free_model() -> None:
    """Free the model before the next one; else nanobind reports its tables as leaks at exit."""
    for _ in range(2):  # a single collection leaves what PyTorch's objects refer to
        gc.collect()


def _write_json(arguments: argparse.Namespace, results: Sequence[Result]) -> None:
    import keras

    document: dict[str, Any] = {
        "workload": "criteo_deepctr",
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "arguments": {name: str(value) for name, value in vars(arguments).items()},
        "results": [result.as_json() for result in results],
    }
    write_output("--json", arguments.json, json.dumps(document, indent=1) + "\n")
