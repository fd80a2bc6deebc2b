"""Checkpoints of a model: its tables as embstore saves them, and the dense part in a file.

With a single worker the file is written before the tables' save is listed, and the previous save's
file is deleted after it: a run that is cut at any moment leaves a checkpoint to resume from. For
workers that train together, `embstore.cluster` ensures that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from keras import ops

import embstore as es
import embstore.keras
from benchmarks.criteo_deepctr.options import ModelOptions
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.model_keeping import read_back, write_durably

if TYPE_CHECKING:
    from embstore.cluster import Worker

__all__ = [
    "TrainingProgress",
    "load_checkpoint",
    "load_newest_of_job",
    "save_checkpoint",
    "save_for_job",
]

_TABLES: Final = "tables"
_DENSE: Final = "dense.npz"


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of training at a checkpoint."""

    epochs: int
    steps: int


def save_checkpoint(
    folder: Path, model: Any, options: ModelOptions, done: TrainingProgress
) -> None:
    """Save rows, dense parameters and both optimizers' state in `folder`, which is created if
    missing.

    Raises StorageError or OSError, which name the file; an earlier checkpoint in the folder then
    stays.
    """
    folder.mkdir(exist_ok=True)
    path = _dense_path(folder, done.steps)
    write_durably(path, _dense_part(model, options, done))
    es.save(folder / _TABLES, es.keras.variables(model), done.steps)
    for other in folder.glob("dense-*.npz"):
        if other != path:
            other.unlink()


def load_checkpoint(folder: Path, model: Any, options: ModelOptions) -> TrainingProgress:
    """Load a checkpoint into a compiled and built model.

    Raises DataError for a folder without a checkpoint, or with another model's checkpoint; and what
    `embstore.restore` raises.
    """
    if not (folder / _TABLES).is_dir():
        raise DataError(f"{folder} has no checkpoint; one is written by --checkpoint {folder}")
    for path in folder.glob("dense-*.npz"):
        _read_dense_part(path, options)
    steps = es.restore(folder / _TABLES, es.keras.variables(model))
    return _take_dense_part(_dense_path(folder, steps), model, options)


def save_for_job(worker: Worker, model: Any, options: ModelOptions, done: TrainingProgress) -> None:
    """Like `save_checkpoint`, in the folder of the worker's job; every worker calls it."""
    with worker.checkpoint(done.steps, es.keras.variables(model)) as folder:
        if folder is not None:
            write_durably(folder / _DENSE, _dense_part(model, options, done))


def load_newest_of_job(
    worker: Worker, model: Any, options: ModelOptions
) -> TrainingProgress | None:
    """Load the newest checkpoint of the worker's job; return None if it has none yet."""
    found = worker.restore(es.keras.variables(model))
    return None if found is None else _take_dense_part(found.path / _DENSE, model, options)


def _dense_part(model: Any, options: ModelOptions, done: TrainingProgress) -> dict[str, Any]:
    arrays = {name: ops.convert_to_numpy(each) for name, each in _dense_variables(model)}
    arrays["model"] = np.array(str(options))
    arrays["epochs"] = np.array(done.epochs)
    arrays["steps"] = np.array(done.steps)
    return arrays


def _take_dense_part(path: Path, model: Any, options: ModelOptions) -> TrainingProgress:
    arrays = _read_dense_part(path, options)
    for name, variable in _dense_variables(model):
        if name not in arrays or arrays[name].shape != tuple(variable.shape):
            raise DataError(f"{path} lacks {name}; was it saved with another optimizer?")
        variable.assign(arrays[name])
    return TrainingProgress(int(arrays["epochs"]), int(arrays["steps"]))


def _read_dense_part(path: Path, options: ModelOptions) -> dict[str, Any]:
    """Reads the dense part. Raises DataError if it can't be read, or is of another model."""
    arrays = read_back(path)
    if (kept := str(arrays.get("model"))) != str(options):
        raise DataError(f"{path.parent} is of {kept}, and this is {options}")
    return arrays


def _dense_path(folder: Path, steps: int) -> Path:
    return folder / f"dense-{steps:012}.npz"


def _dense_variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields all variables but rows, by names that are the same in every model of the same
    options.
    """
    for number, variable in enumerate(model.weights):
        if not getattr(variable, "overwrite_with_gradient", False):
            yield f"weight_{number}", variable
    for number, variable in enumerate(model.optimizer.variables):
        yield f"optimizer_{number}", variable
