"""Checkpoints of variables: saved whole or not at all, and read by any storage type.

`path` is a directory. It holds numbered saves, the newest of which counts; a save that dies leaves
the one before. Every byte is guarded by a checksum. engine/FORMAT.md describes the files.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embstore import _checks
from embstore._manifest import Manifest
from embstore._restore_plan import SAVE_FILTERED_FEATURES, SaveOnMedium, plan_restore
from embstore._save_job import SaveJob
from embstore._saves import newest_full, only_incremental, publishing
from embstore.errors import ClosedError, InvalidArgumentError
from embstore.variable import EmbeddingVariable, OnDamage

__all__ = ["SaveReport", "restore", "save", "save_incremental"]

PathLike: TypeAlias = "str | os.PathLike[str]"


def save(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int,
    *,
    on_damage: OnDamage = "raise",
) -> SaveReport:
    """Saves every row of the variables, which no two share a name.

    A save has each variable as it is at one moment between two batches, all partitions at the same.
    Look-ups and updates go on while the rows are written. A row that an update changes before it is
    written is kept in memory as it was; if such rows exceed 64 MiB in a partition, updates wait for
    the save. So memory doesn't grow with the table. At the moment each variable's evict_option
    drops rows from it, in every tier; updates wait only until those are gone. If partitions are on
    other nodes (`shards=`), the updates of this process wait until the rows are written.

    path: a directory, made if its parent exists; what it held before is removed in the end.
    global_step: kept with the save, and what GlobalStepEvict counts from.
    on_damage: what to do where a medium doesn't give rows back as they were written: "raise"
        DamagedRowsError, which has their `keys`; or "skip" them, which the report tells of. They
        stay in the variable (see `EmbeddingVariable.drop_damaged`). A restore has no row of them;
        or, where an incremental save skipped them, the row of the save before.

    Raises StorageError, which names the file, where the files can't be written: the save before
    stays as it was. Keys that wait at a filter are saved too, unless TF_EV_SAVE_FILTERED_FEATURES
    is 0 or False.
    """
    return _save(path, variables, global_step, incremental=False, on_damage=on_damage)


def save_incremental(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int,
    *,
    on_damage: OnDamage = "raise",
) -> SaveReport:
    """As `save`, but only the rows updated, and the keys removed, since each variable's last save
    of either kind (or since it was restored).

    path: a directory without a save: each incremental save has its own.

    Raises InvalidArgumentError for a variable that was neither saved nor restored yet, or whose
    last restore failed.
    """
    return _save(path, variables, global_step, incremental=True, on_damage=on_damage)


@dataclass(frozen=True)
class SaveReport:
    """What a save did.

    skipped: by the name of each variable that had damaged rows, their keys, int64 (n,), ascending;
        empty where the save is whole.
    """

    skipped: Mapping[str, NDArray[np.int64]]


def restore(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    incremental: Sequence[PathLike] = (),
) -> int:
    """Replaces what the variables hold by what was saved under their names.

    The storage type, partition_num and dim may be others than those of the save: columns that it
    lacks get their initial values, those that it has too many are cut. The rows that rank highest
    come back into the upper tiers. The optimizer's state is that of the save, the learning rate
    too. A variable without an optimizer takes the weights alone. Saves of versions that put keys
    into other partitions are restored as any others.

    incremental: the paths of the incremental saves that followed, in order.

    Returns the global_step of the last of the saves. Everything is verified before the first row
    changes: CheckpointError, which names the file, where one is missing, truncated or damaged, or
    doesn't belong to the others; and where a variable isn't in the save or had another optimizer.
    StoreFullError where its rows don't fit.
    """
    chosen = check_variables(variables)
    if isinstance(incremental, (str, os.PathLike)):
        raise InvalidArgumentError("incremental must be a list of paths, got one path")
    saves = [SaveOnMedium.open(newest_full(directory_path(path)))]
    saves += [
        SaveOnMedium.open(only_incremental(directory_path(increment))) for increment in incremental
    ]
    waiting_keys = saves_waiting_keys()
    plans = [plan_restore(variable, saves, waiting_keys) for variable in chosen]
    for plan in plans:
        plan.carry_out()
    return saves[-1].manifest.global_step


def _save(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int,
    *,
    incremental: bool,
    on_damage: str,
) -> SaveReport:
    chosen = check_variables(variables)
    step = _checks.integer("global_step", global_step, at_least=0)
    job = SaveJob(
        save_id=uuid.uuid4().hex,
        global_step=step,
        incremental=incremental,
        waiting_keys=saves_waiting_keys(),
        skip_damaged=_checks.choice("on_damage", on_damage, ("raise", "skip")) == "skip",
    )
    with checkpoint_locks(chosen):
        if incremental:
            for variable in chosen:
                if variable._last_save is None:
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
                global_step=step,
                variables=tuple(entry for entry, _ in saved),
            ).write(directory)
            publish()
            for variable, (_, parts) in zip(chosen, saved, strict=True):
                variable._last_save = job.save_id
                with contextlib.suppress(ClosedError):
                    for shard, part in zip(variable._shards, parts, strict=True):
                        if part.skipped.size == 0:  # else the next one has all of this one's again
                            shard.save_succeeded(part.next_span)
    skipped = {
        variable.name: np.sort(np.concatenate([part.skipped for part in parts]))
        for variable, (_, parts) in zip(chosen, saved, strict=True)
    }
    return SaveReport({name: keys for name, keys in skipped.items() if keys.size})


# --- Arguments


def check_variables(variables: Sequence[EmbeddingVariable]) -> list[EmbeddingVariable]:
    if isinstance(variables, EmbeddingVariable):
        raise InvalidArgumentError(f"variables must be a list; give [{variables.name}]")
    chosen = list(variables)
    if not chosen:
        raise InvalidArgumentError("variables must have at least one variable")
    for variable in chosen:
        if not isinstance(variable, EmbeddingVariable):
            raise InvalidArgumentError(
                f"variables must hold EmbeddingVariables, got {type(variable).__name__}"
            )
        variable._refuse_if_forked()
    names = [variable.name for variable in chosen]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"variables: two of them are named {name}")
    return chosen


def directory_path(path: PathLike) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidArgumentError(f"path must name a directory, got {path!r}")
    return _checks.absolute("path", path)


def saves_waiting_keys() -> bool:
    value = os.environ.get(SAVE_FILTERED_FEATURES, "").lower()
    if value in ("", "1", "true"):
        return True
    if value in ("0", "false"):
        return False
    raise InvalidArgumentError(
        f"{SAVE_FILTERED_FEATURES} must be 1 or True, or 0 or False, got {value}"
    )


@contextlib.contextmanager
def checkpoint_locks(variables: Sequence[EmbeddingVariable]) -> Iterator[None]:
    """Keeps saves and restores of a variable apart."""
    with contextlib.ExitStack() as stack:
        for variable in sorted(variables, key=id):  # one order for all threads
            stack.enter_context(variable._checkpoint_lock)
        yield
