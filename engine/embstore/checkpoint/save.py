"""Saves of variables: written whole or not at all, and readable by any storage type.

`path` is a directory of numbered saves, the newest of which counts; a save that dies leaves the
older one. Checksums cover every byte. engine/FORMAT.md describes the files.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.checkpoint.arguments import (
    PathLike,
    check_variables,
    checkpoint_locks,
    checkpoint_step,
    directory_path,
    saves_waiting_keys,
)
from embstore.checkpoint.directories import publishing
from embstore.checkpoint.manifest import Manifest
from embstore.checkpoint.persist.earlier_runs import check_none_awaits_restore
from embstore.checkpoint.save_job import SaveJob
from embstore.errors import EmbStoreError, InvalidArgumentError
from embstore.table import checks
from embstore.variable import EmbeddingVariable, OnDamage

__all__ = ["SaveReport", "save", "save_incremental", "save_outside_chain"]


def save(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int | None = None,
    *,
    on_damage: OnDamage = "raise",
) -> SaveReport:
    """Saves every row of the variables, whose names must differ.

    A save has each variable as of one moment between two batches, the same for all its partitions.
    Look-ups and updates go on while the rows are written. If an update changes a row that is not
    written yet, the old row is kept in memory; if such rows exceed 64 MiB in a partition, updates
    wait for the save. So memory doesn't grow with the table. At the moment of the save, each
    variable's evict_option drops rows in every tier; updates wait only until those are removed. If
    partitions are on other nodes (`shards=`), this process's updates wait until the rows are
    written.

    path: a directory, made if its parent exists; its older save is removed in the end.
    global_step: stored with the save; GlobalStepEvict counts from it. None: each variable counts
        from its own number of applies, and the largest is stored.
    on_damage: "raise": damaged rows raise DamagedRowsError, which has their `keys`; "skip": damaged
        rows are left out, and listed in the report. They stay in the variable (see
        `EmbeddingVariable.drop_damaged`). A restore has no row for their keys, or, if an
        incremental save skipped them, the row of the save before.

    Raises StorageError, which names the file, if the files can't be written, and for a variable
    that awaits its restore (`get_embedding_variable(restores=True)`); the older save then stays.
    Keys that wait at a filter are saved too, unless TF_EV_SAVE_FILTERED_FEATURES is 0 or False.
    """
    return _save(path, variables, global_step, incremental=False, on_damage=on_damage)


def save_incremental(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int,
    *,
    on_damage: OnDamage = "raise",
) -> SaveReport:
    """Saves the rows updated, and the keys removed, since each variable's last save of either kind,
    or since it was restored; otherwise as `save`.

    path: a directory without a save: each incremental save needs its own.

    Raises InvalidArgumentError for a variable that was neither saved nor restored yet, or whose
    last restore failed.
    """
    return _save(path, variables, global_step, incremental=True, on_damage=on_damage)


def save_outside_chain(
    path: PathLike, variables: Sequence[EmbeddingVariable], global_step: int
) -> SaveReport:
    """Saves as `save` does, but later incremental saves still follow the save before this one."""
    return _save(
        path, variables, global_step, incremental=False, on_damage="raise", outside_chain=True
    )


@dataclass(frozen=True)
class SaveReport:
    """The result of a save.

    skipped: the keys of damaged rows, int64 (n,), ascending, by the name of their variable; empty
        if no row was skipped.
    """

    skipped: Mapping[str, NDArray[np.int64]]


def _save(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int | None,
    *,
    incremental: bool,
    on_damage: str,
    outside_chain: bool = False,
) -> SaveReport:
    chosen = check_variables(variables)
    if global_step is not None:
        global_step = checks.integer("global_step", global_step, at_least=0)
    job = SaveJob(
        save_id=uuid.uuid4().hex,
        global_step=global_step,
        incremental=incremental,
        waiting_keys=saves_waiting_keys(),
        skip_damaged=checks.choice("on_damage", on_damage, ("raise", "skip")) == "skip",
    )
    with checkpoint_locks(chosen):
        check_none_awaits_restore(chosen)
        if incremental:
            for variable in chosen:
                if variable.internals.last_save is None:
                    raise InvalidArgumentError(
                        f"variables: {variable.name} was neither saved nor restored yet, or its "
                        "last restore failed, so an incremental save has nothing to go on from; "
                        "save() it first"
                    )
        with publishing(directory_path(path), incremental=incremental) as (directory, publish):
            saved = [
                job.write(variable, directory, number) for number, variable in enumerate(chosen)
            ]
            Manifest(
                save_id=job.save_id,
                kind="incremental" if incremental else "full",
                global_step=checkpoint_step(chosen, global_step),
                variables=tuple(entry for entry, _ in saved),
            ).write(directory)
            publish()
            for variable, (_, parts) in () if outside_chain else zip(chosen, saved, strict=True):
                variable.internals.last_save = job.save_id
                with contextlib.suppress(EmbStoreError):  # the save is published: it succeeded
                    for shard, part in zip(variable.internals.shards, parts, strict=True):
                        if part.skipped.size == 0:  # else the next save writes these rows again
                            shard.save_succeeded(part.number)
    skipped = {
        variable.name: np.sort(np.concatenate([part.skipped for part in parts]))
        for variable, (_, parts) in zip(chosen, saved, strict=True)
    }
    return SaveReport({name: keys for name, keys in skipped.items() if keys.size})
