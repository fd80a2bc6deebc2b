"""Saves and restores what OpenEmbedding keeps of a model on its servers: the rows."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embstore.checkpoint.arguments import checkpoint_locks, directory_path
from embstore.checkpoint.directories import reading_newest_full
from embstore.checkpoint.persist import persisting
from embstore.checkpoint.persist.checkpoints import checkpoint_path, listed_numbers
from embstore.checkpoint.persist.writer import writer_of
from embstore.checkpoint.restore import carry_out, plan_restores
from embstore.checkpoint.restore_plan import RestorePlan, SaveOnMedium
from embstore.checkpoint.save import save
from embstore.errors import CheckpointError, InvalidArgumentError
from embstore.files import read_file, replace_file, writing_to
from embstore.keras.embedding import Embedding
from embstore.keras.models import embeddings, variables
from embstore.openembedding.flags import flags
from embstore.openembedding.server_config import server_config
from embstore.options import TierKind
from embstore.table import checks
from embstore.variable import EmbeddingVariable

__all__ = [
    "MAX_KEPT",
    "check_persisted",
    "load_server_model",
    "persist_server_model",
    "restore_server_model",
    "save_server_model",
    "should_persist_server_model",
]

_NOTE = "persisted.json"
_FORMAT, _VERSION = "embstore.openembedding persisted model", 1
MAX_KEPT = 8  # checkpoints of a table's pool
# Beside the window: until a save is whole, the previous one must stay.
_KEPT_FOR_THE_SAVE_BEFORE = 1
_MAX_WINDOW = MAX_KEPT - 1 - _KEPT_FOR_THE_SAVE_BEFORE

PathLike = str | os.PathLike[str]


def save_server_model(model: Any, filepath: PathLike, include_optimizer: bool = True) -> None:
    """Saves the rows of the model's tables to the folder `filepath`, as `embstore.save` does.

    include_optimizer: has no effect: rows are always saved with their optimizer slots.
    """
    del include_optimizer
    save(_folder(filepath), variables(model))


def load_server_model(model: Any, filepath: PathLike) -> None:
    """Restores what `save_server_model` saved, as `embstore.restore` does.

    Tables whose names differ from the saved ones get their rows by their place in the model. Raises
    CheckpointError, and restores nothing, if a row has an id that its layer refuses.
    """
    tables = variables(model)
    with reading_newest_full(_folder(filepath)) as full:
        plans = plan_restores([_with_names_of(tables, SaveOnMedium.open(full))], tables)
        for layer, plan in zip(embeddings(model), plans, strict=True):
            _check_vocabulary(layer, plan)
        with checkpoint_locks(tables):
            carry_out(plans)


def persist_server_model(model: Any, filepath: PathLike, persist_pending_window: int) -> None:
    """Makes a checkpoint of the pools between two batches, and records its number in `filepath`.

    filepath: a folder, made if its parent exists. The rows stay in the pools.
    persist_pending_window: 0: the checkpoint is durable on return. n, at most 6: returns at once,
        unless n earlier checkpoints are still pending. The last n + 2 can be restored.

    Raises the errors of `embstore.persist`.
    """
    window = checks.integer(
        "persist_pending_window", persist_pending_window, at_least=0, at_most=_MAX_WINDOW
    )
    folder = _folder(filepath)
    tables = variables(model)
    checkpoint = persisting.make_checkpoint(
        tables, _listed_at(tables), window, None, keep=window + 1 + _KEPT_FOR_THE_SAVE_BEFORE
    )
    _write_note(folder, {"checkpoint": checkpoint.number, "id": checkpoint.id.hex()})


def restore_server_model(model: Any, filepath: PathLike) -> None:
    """Restores the model's rows from the checkpoint that `persist_server_model` recorded in
    `filepath`.

    Raises CheckpointError if that checkpoint is gone, and the errors of
    `embstore.restore_persisted`.
    """
    directory, number = _noted_checkpoint(model, filepath)
    persisting.restore_persisted(variables(model), directory, number)


def check_persisted(model: Any, filepath: PathLike) -> None:
    """Raises CheckpointError if `persist_server_model` recorded a checkpoint in the folder that
    `restore_server_model` would refuse. Restores nothing.
    """
    if (_folder(filepath) / _NOTE).exists():
        _noted_checkpoint(model, filepath)


def should_persist_server_model(model: Any) -> bool:
    """Returns whether a checkpoint is cheap now: none is pending, and a table's cache is full."""
    tables = variables(model)
    writers = map(writer_of, tables)
    if any(writer is not None and writer.is_pending() for writer in writers):
        return False
    return any(persisting.should_persist([table]) for table in tables)


def _with_names_of(tables: Sequence[EmbeddingVariable], save: SaveOnMedium) -> SaveOnMedium:
    """Returns the save with the names of the tables. Another model of the same layers may have
    other names, since Keras continues to number layers. Raises CheckpointError if it has other
    tables.
    """
    names = [table.name for table in tables]
    entries = save.manifest.variables
    if {*names} <= {entry.name for entry in entries}:
        return save
    if [entry.dim for entry in entries] == [table.dim for table in tables]:
        return save.renamed(names)
    raise _other_tables_error(names, save)


def _check_vocabulary(layer: Embedding, plan: RestorePlan) -> None:
    size = layer.input_dim
    assert plan.key_range is not None, "files have the rows"
    min_key, max_key = plan.key_range
    if size is not None and min_key <= max_key and (min_key < 0 or max_key >= size):
        raise CheckpointError(
            f"{plan.newest.directory}: has rows of {layer.name} for ids from {min_key} to "
            f"{max_key}, and the layer takes those from 0 to {size - 1}; make it with the "
            "input_dim that it was saved with, a larger one, or None for any int64"
        )


def _other_tables_error(names: Sequence[str], save: SaveOnMedium) -> CheckpointError:
    return CheckpointError(
        f"{save.directory}: is of the tables "
        f"{', '.join(entry.name for entry in save.manifest.variables)}, and the model has "
        f"{', '.join(names)}; give its layers the names that they were saved with, or call "
        "keras.utils.clear_session() before the model is made"
    )


def _noted_checkpoint(model: Any, filepath: PathLike) -> tuple[Path, int]:
    """Returns the folder and number of the checkpoint that `persist_server_model` recorded."""
    note = _folder(filepath) / _NOTE
    number, checkpoint_id = _read_note(note)
    tables = embeddings(model)
    directory = _listed_at(tables)
    if number not in listed_numbers(directory):
        listed = ", ".join(map(str, listed_numbers(directory))) or "none"
        raise CheckpointError(
            f"{note}: names checkpoint {number}, and {directory} lists {listed}: it never became "
            "durable, newer ones took its place (persist_pending_window), or flags.config named "
            "another folder for its pools"
        )
    save = SaveOnMedium.open(checkpoint_path(directory, number))
    if save.manifest.save_id != checkpoint_id:
        raise CheckpointError(
            f"{note}: names checkpoint {number}, which was given up by a restore of an older one; "
            f"the one of that number in {directory} is another"
        )
    names = [table.name for table in tables]
    if not {*names} <= {entry.name for entry in save.manifest.variables}:
        raise _other_tables_error(names, save)  # its pools have those names
    return directory, number


def _listed_at(tables: Sequence[EmbeddingVariable | Embedding]) -> Path:
    """Returns the folder that lists the checkpoints of the tables' pools."""
    if not tables:
        raise InvalidArgumentError(
            "model: has no tables; pass the model that distributed_model returned (embeddings with "
            "at most sparse_as_dense_size ids aren't tables), or one with layers of Embedding"
        )
    chosen = server_config(flags.config).checkpoint_path
    if chosen is not None:
        return Path(chosen)
    for table in tables:
        for tier in table.ev_option.storage_option.tiers():
            if tier.kind is TierKind.PMEM_POOL:
                return Path(str(tier.path)) / "persisted"
    raise InvalidArgumentError(
        "model: its tables lie in no pool on persistent memory; set server.pmem_pool_root_path in "
        "flags.config before the model is made"
    )


def _folder(filepath: PathLike) -> Path:
    path = directory_path(filepath)
    if "://" in os.fspath(filepath):
        raise InvalidArgumentError(f"filepath must be a folder, got the URI {filepath}")
    return path


def _write_note(folder: Path, entries: dict[str, Any]) -> None:
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **entries}, indent=1)
    with writing_to(folder):
        folder.mkdir(exist_ok=True)
    replace_file(folder / _NOTE, text.encode())


def _read_note(note: Path) -> tuple[int, str]:
    try:
        entries = json.loads(read_file(note))
        if entries["format"] == _FORMAT and entries["version"] == _VERSION:
            return int(entries["checkpoint"]), str(entries["id"])
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{note}: can't be read: {error.strerror}; it's what persist_server_model writes"
        ) from error
    except (ValueError, KeyError, TypeError):
        pass
    raise CheckpointError(f"{note}: isn't what persist_server_model writes")
