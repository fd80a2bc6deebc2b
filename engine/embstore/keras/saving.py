"""Saves and loads a table's rows in the files that Keras saves a model's weights to.

The data in such a file are an embstore checkpoint of the one variable, each checkpoint file as an
array of bytes, so that all its checks apply. `state` names these files and has the layer's own
data.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from embstore.checkpoint.arguments import checkpoint_locks, saves_waiting_keys
from embstore.checkpoint.manifest import Manifest
from embstore.checkpoint.persist.earlier_runs import check_none_awaits_restore
from embstore.checkpoint.restore_plan import (
    SaveOnMedium,
    check_room_of_successor,
    plan_restore,
    verified_files_for,
)
from embstore.checkpoint.save_job import SaveJob
from embstore.errors import CheckpointError
from embstore.initializers import Constant, Initializer
from embstore.keras.descriptions import describe, from_description
from embstore.keras.optimizers import are_same_rule
from embstore.keras.table import Table, are_same_initializer
from embstore.optimizers import Optimizer

__all__ = ["load_table", "rows_kept_apart", "save_table"]

_VERSION = 1
_STATE, _INITIAL = "state", "initial_rows"

_are_rows_apart: ContextVar[bool] = ContextVar("rows_kept_apart", default=False)


@contextlib.contextmanager
def rows_kept_apart() -> Iterator[None]:
    """Returns a context manager in which models are saved without their rows, and loaded from such
    files.

    Use it if the rows don't fit into memory, where `model.save` makes its file, and save them by
    `embstore.save(folder, variables(model), step)`. A table keeps its rows when such a file is
    loaded. Loading raises CheckpointError outside the context, and if the table has rows and
    another initializer or optimizer than the file says.
    """
    before = _are_rows_apart.set(True)
    try:
        yield
    finally:
        _are_rows_apart.reset(before)


def save_table(table: Table, store: Any) -> None:
    """Saves the table. store: the dict-like object of arrays that `save_own_variables` gets."""
    state: dict[str, Any] = {
        "version": _VERSION,
        "apart": _are_rows_apart.get(),
        "files": [],
        "input_dim": table.vocabulary_size,
        "output_dim": table.dim,
    }
    initial = table.initial_rows
    if initial is not None:
        store[_INITIAL] = initial
    else:
        state["initializer"] = describe("initializer", table.initializer)
    optimizer = table.variable.optimizer if table.is_made else None
    state["optimizer"] = describe("optimizer", optimizer)
    if not state["apart"] and table.is_made:
        with tempfile.TemporaryDirectory(prefix="embstore-keras-") as folder:
            directory = Path(folder)
            _write(table, directory)
            for number, file in enumerate(sorted(directory.iterdir())):
                state["files"].append(file.name)
                # Memory-mapped, so that h5py reads the file piece by piece.
                store[f"file_{number}"] = np.memmap(file, np.uint8, "r")
    store[_STATE] = np.frombuffer(json.dumps(state).encode(), np.uint8)


def load_table(table: Table, store: Any) -> None:
    """Replaces the table's rows. Raises CheckpointError if the file lacks what was saved."""
    names = set(store.keys())
    if _STATE not in names:
        raise CheckpointError(
            f"{table.name}: the file holds no rows of it, since it was saved of a layer that "
            "isn't an embstore.keras.Embedding"
        )
    state = json.loads(np.asarray(store[_STATE]).tobytes())
    if state["version"] != _VERSION:
        raise CheckpointError(
            f"{table.name}: its rows were saved in version {state['version']} of the format, and "
            f"this program reads version {_VERSION}"
        )
    if state["apart"] and not _are_rows_apart.get():
        raise CheckpointError(
            f"{table.name}: the file was saved without its rows; load it in "
            "embstore.keras.rows_kept_apart(), and restore the rows from where they were kept"
        )
    initializer: Initializer | None = None  # None: an older file without it
    if _INITIAL in names:
        initializer = Constant(np.asarray(store[_INITIAL], np.float32))
    elif "initializer" in state:
        initializer = from_description(state["initializer"])
    saved_by = from_description(state["optimizer"])
    # Everything that can be refused is refused before the table is changed.
    _check_shape(table, state, initializer)
    if state["apart"] and _keeps_rows(table, initializer, saved_by):
        return
    with tempfile.TemporaryDirectory(prefix="embstore-keras-") as folder:
        directory = Path(folder)
        for number, name in enumerate(state["files"]):
            if f"file_{number}" not in names or Path(name).name != name:
                raise CheckpointError(f"{table.name}: the file lacks its {name}")
            (directory / name).write_bytes(np.asarray(store[f"file_{number}"]).tobytes())
        save = _verified_save(table, directory, saved_by) if state["files"] else None
        if initializer is not None:
            table.set_initializer(initializer)
        if table.own_rule is None and (not table.is_made or table.variable.optimizer != saved_by):
            table.make(saved_by)
        if save is not None:
            _restore(table, save)
        elif table.is_made and not state["apart"]:
            table.make(table.variable.optimizer)  # the file was saved before the table had rows


def _check_shape(table: Table, state: dict[str, Any], initializer: Initializer | None) -> None:
    """Raises CheckpointError if the file's table has another dim, or ids that this one refuses."""
    dim = state.get("output_dim")  # None: an older file without it
    if dim is None:
        values = np.shape(initializer.value) if isinstance(initializer, Constant) else ()
        dim = values[-1] if values else table.dim
    size = table.vocabulary_size
    saved_size = state.get("input_dim", size)
    fits = size is None or (saved_size is not None and saved_size <= size)
    if dim != table.dim or not fits:
        raise _mismatch(table, saved_size, dim)


def _mismatch(table: Table, size: int | None, dim: int) -> CheckpointError:
    return CheckpointError(
        f"{table.name}: the file has a table of input_dim={size}, output_dim={dim}, and the layer "
        f"is one of input_dim={table.vocabulary_size}, output_dim={table.dim}; make the layer as "
        "it was saved (input_dim may be larger), or load with skip_mismatch=True to leave it as it "
        "is"
    )


def _keeps_rows(table: Table, initializer: Initializer | None, saved_by: Optimizer | None) -> bool:
    """Returns whether the table stays as it is because a file saved without its rows matches it.

    Raises CheckpointError if the table has rows, and another initializer or optimizer than the
    file.
    """
    if not table.is_made:
        return False
    optimizer = table.variable.optimizer
    has_rows = table.variable.total_count()[0] > 0
    differences = []
    if initializer is not None and not are_same_initializer(initializer, table.initializer):
        differences.append("initializer")
    if table.own_rule is None and saved_by is not None:
        # Rows without an optimizer can only be looked up, so any optimizer may have trained them.
        is_same_optimizer = has_rows if optimizer is None else are_same_rule(optimizer, saved_by)
        differences += [] if is_same_optimizer else ["optimizer"]
    if differences and has_rows:
        raise CheckpointError(
            f"{table.name}: the file was saved without its rows, of a table of another "
            f"{' and '.join(differences)} than the one that has rows now; load the weights first, "
            "and restore the rows after that"
        )
    return not differences


def _write(table: Table, directory: Path) -> None:
    # Doesn't call embstore.save: increments of the user's own saves must not follow this save.
    variable = table.variable
    step = variable.internals.apply_count()
    job = SaveJob(uuid.uuid4().hex, step, False, saves_waiting_keys(), skip_damaged=False)
    with checkpoint_locks([variable]):
        check_none_awaits_restore([variable])
        entry, _ = job.write(variable, directory, 0)
    Manifest(job.save_id, "full", step, (entry,)).write(directory)


def _verified_save(table: Table, directory: Path, optimizer: Optimizer | None) -> SaveOnMedium:
    """Returns the save in the directory, after checking that its rows are whole and fit the table
    as it is going to be. Checks the room for them only if the table is made: else a failure to
    write them loses nothing.

    optimizer: the one to make the table with, unless it has one of its own.
    """
    save = SaveOnMedium.open(directory)
    (entry,) = save.manifest.variables
    if entry.dim != table.dim:
        raise _mismatch(table, table.vocabulary_size, entry.dim)
    rule = optimizer if table.own_rule is None else table.own_rule.optimizer
    verified = verified_files_for(table.name, rule, table.partition_num, save, entry)
    if table.is_made:
        check_room_of_successor(table.variable, rule, verified)
    return save


def _restore(table: Table, save: SaveOnMedium) -> None:
    variable = table.variable
    # Keras identifies layers by their place in the model; names may differ.
    plan = plan_restore(variable, [save.renamed([variable.name])], saves_waiting_keys())
    with checkpoint_locks([variable]):
        plan.carry_out()
        variable.internals.last_save = None  # its folder is about to be deleted
