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
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from embstore import _checks, _core
from embstore._manifest import FileEntry, Manifest, OptimizerEntry, VariableEntry
from embstore._saves import newest_full, only_incremental, publishing
from embstore._shard import SavedShard, Shard, ShardState
from embstore.errors import (
    CheckpointError,
    ClosedError,
    EmbStoreError,
    InvalidArgumentError,
    StoreFullError,
)
from embstore.options import CBFFilter, CounterFilter, GlobalStepEvict, L2WeightEvict
from embstore.variable import EmbeddingVariable, OnDamage

if TYPE_CHECKING:
    from embstore.optimizers import Optimizer

__all__ = ["SaveReport", "restore", "save", "save_incremental"]

PathLike: TypeAlias = "str | os.PathLike[str]"

SAVE_FILTERED_FEATURES = "TF_EV_SAVE_FILTERED_FEATURES"


def save(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int,
    *,
    on_damage: OnDamage = "raise",
) -> SaveReport:
    """Saves every row of the variables, which no two share a name.

    Beforehand, each variable's evict_option drops rows from it, in every tier. Rows go to the files
    as they are read, so memory doesn't grow with the table. Updates of a variable wait while its
    rows are written.

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

    Raises InvalidArgumentError for a variable that was neither saved nor restored yet.
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
    come back into the upper tiers. A variable without an optimizer takes the weights alone.

    incremental: the paths of the incremental saves that followed, in order.

    Returns the global_step of the last of the saves. Everything is verified before the first row
    changes: CheckpointError, which names the file, where one is missing, truncated or damaged, or
    doesn't belong to the others; and where a variable isn't in the save or had another optimizer.
    StoreFullError where its rows don't fit.
    """
    chosen = _check_variables(variables)
    if isinstance(incremental, (str, os.PathLike)):
        raise InvalidArgumentError("incremental must be a list of paths, got one path")
    saves = [_Save.open(newest_full(_path(path)))]
    saves += [_Save.open(only_incremental(_path(increment))) for increment in incremental]
    waiting_keys = _saves_waiting_keys()
    plans = [_plan(variable, saves, waiting_keys) for variable in chosen]
    for plan in plans:
        plan.carry_out()
    return saves[-1].manifest.global_step


@dataclass(frozen=True)
class _Save:
    """One save that was found on a medium."""

    directory: Path
    manifest: Manifest

    @staticmethod
    def open(directory: Path) -> _Save:
        return _Save(directory, Manifest.read(directory))

    def entry(self, name: str) -> VariableEntry | None:
        return next((entry for entry in self.manifest.variables if entry.name == name), None)


# --- Saving


def _save(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    global_step: int,
    *,
    incremental: bool,
    on_damage: str,
) -> SaveReport:
    chosen = _check_variables(variables)
    step = _checks.integer("global_step", global_step, at_least=0)
    job = _SaveJob(
        save_id=uuid.uuid4().hex,
        global_step=step,
        incremental=incremental,
        waiting_keys=_saves_waiting_keys(),
        skip_damaged=_checks.choice("on_damage", on_damage, ("raise", "skip")) == "skip",
    )
    with _checkpoint_locks(chosen):
        if incremental:
            for variable in chosen:
                if variable._last_save is None:
                    raise InvalidArgumentError(
                        f"variables: {variable.name} was neither saved nor restored yet, so an "
                        "incremental save has nothing to go on from; save() it first"
                    )
        with publishing(_path(path), incremental=incremental) as (directory, publish):
            saved = [
                _write(variable, directory, number, job) for number, variable in enumerate(chosen)
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


@dataclass(frozen=True)
class _SaveJob:
    """What all files of a save have in common."""

    save_id: str
    global_step: int
    incremental: bool
    waiting_keys: bool
    skip_damaged: bool


def _write(
    variable: EmbeddingVariable, directory: Path, number: int, job: _SaveJob
) -> tuple[VariableEntry, list[SavedShard]]:
    """Writes a variable's files; returns the manifest's entry, and what each shard said."""
    least_version, least_half_square = _eviction(variable, job.global_step)
    files = []
    parts: list[SavedShard] = []
    with variable._partitions_lock:  # so that every partition has the same batches
        for partition, shard in enumerate(variable._shards):
            name = f"{_quoted(variable.name)}-{number}.{partition}.rows"
            part = shard.save(
                str(directory / name),
                save_id=bytes.fromhex(job.save_id),
                partition=partition,
                partition_count=len(variable._shards),
                incremental=job.incremental,
                least_version=least_version,
                least_half_square=least_half_square,
                waiting_keys=job.waiting_keys,
                skip_damaged=job.skip_damaged,
            )
            parts.append(part)
            files.append(FileEntry(name, **{fact: getattr(part, fact) for fact in _FILE_FACTS}))
    state = parts[0].state
    entry = VariableEntry(
        name=variable.name,
        dim=variable.dim,
        optimizer=_optimizer_entry(variable.optimizer),
        apply_count=state.apply_count,
        beta1_power=state.beta1_power,
        beta2_power=state.beta2_power,
        clock=max(part.state.clock for part in parts),
        follows=variable._last_save if job.incremental else None,
        total_rows=sum(part.rows_left - part.skipped.size for part in parts),
        files=tuple(files),
    )
    return entry, parts


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="replace")[:64]  # a number after it tells names apart


_FILE_FACTS = ("size", "checksum", "rows", "removed_keys", "waiting_keys", "sketches")


def _eviction(variable: EmbeddingVariable, global_step: int) -> tuple[int | None, float | None]:
    """The least version, and the least half square of the weights, that rows must have to stay."""
    option = variable.ev_option.evict_option
    if isinstance(option, GlobalStepEvict):
        return global_step - option.steps_to_live, None
    if isinstance(option, L2WeightEvict):
        return None, option.l2_weight_threshold
    return None, None


def _optimizer_entry(optimizer: Optimizer | None) -> OptimizerEntry | None:
    if optimizer is None:
        return None
    return OptimizerEntry(optimizer.name, optimizer.slots, optimizer.params())


# --- Restoring


@dataclass(frozen=True)
class _Plan:
    """How one variable is restored; everything in it was verified."""

    variable: EmbeddingVariable
    newest: _Save
    entry: VariableEntry  # of the newest save
    chain: list[list[str]]  # files, the newest save's first
    waiting_keys: bool

    def carry_out(self) -> None:
        variable = self.variable
        state = ShardState(
            apply_count=self.entry.apply_count,
            beta1_power=self.entry.beta1_power,
            beta2_power=self.entry.beta2_power,
            clock=self.entry.clock,
        )
        with _checkpoint_locks([variable]), variable._partitions_lock:
            variable._last_save = None
            try:
                self._fill(self.chain, state)
            except ClosedError:
                raise
            except EmbStoreError as error:
                self._fill([], state)  # a part of the rows is of no use
                raise CheckpointError(f"{variable.name} is left empty: {error}") from error
            variable._last_save = self.newest.manifest.save_id

    def _fill(self, chain: list[list[str]], state: ShardState) -> None:
        shards = self.variable._shards
        for partition, shard in enumerate(shards):
            shard.restore(
                chain,
                partition=partition,
                partition_count=len(shards),
                state=state,
                waiting_keys=self.waiting_keys,
            )


def _plan(variable: EmbeddingVariable, saves: list[_Save], waiting_keys: bool) -> _Plan:
    chain = _links(variable, saves)
    partition_count = len(variable._shards)
    bound = [0] * partition_count  # rows a partition may get
    shapes: set[tuple[int, int, int]] = set()
    for save, entry in chain:
        _check_optimizer(variable, save, entry)
        shapes.clear()
        for partition, file in enumerate(entry.files):
            verified = _verify(save, entry, partition, file, partition_count)
            bound = [a + b for a, b in zip(bound, verified["rows_by_partition"], strict=True)]
            shapes.update(verified["sketch_shapes"])
    newest, entry = chain[-1]
    if waiting_keys:
        _check_sketches(variable, newest, shapes)
    files = [
        [str(save.directory / file.name) for file in entry.files] for save, entry in chain[::-1]
    ]
    _check_room(variable, bound, files)
    return _Plan(variable, newest, entry, files, waiting_keys)


def _links(variable: EmbeddingVariable, saves: list[_Save]) -> list[tuple[_Save, VariableEntry]]:
    """The saves that have the variable, each with its entry; sure to follow one another."""
    full, *increments = saves
    entry = full.entry(variable.name)
    if entry is None:
        names = ", ".join(entry.name for entry in full.manifest.variables)
        raise CheckpointError(f"{full.directory}: has no variable {variable.name}, only {names}")
    chain = [(full, entry)]
    for save in increments:
        entry = save.entry(variable.name)
        if entry is None:
            continue  # the variable wasn't saved this time, and the next save goes on without it
        if entry.follows != chain[-1][0].manifest.save_id:
            raise CheckpointError(
                f"{save.directory}: what it holds of {variable.name} doesn't follow "
                f"{chain[-1][0].directory}; give the full save and every incremental one after "
                "it, in order"
            )
        chain.append((save, entry))
    return chain


def _verify(
    save: _Save, entry: VariableEntry, partition: int, file: FileEntry, partition_count: int
) -> dict[str, Any]:
    path = save.directory / file.name
    found = _core.verify_rows(str(path), partition_count)
    wanted = {
        "save_id": bytes.fromhex(save.manifest.save_id),
        "dim": entry.dim,
        "slot_count": len(entry.optimizer.slots) if entry.optimizer else 0,
        "partition": partition,
        "partition_count": entry.partition_num,
        "incremental": save.manifest.kind == "incremental",
        **{field: getattr(file, field) for field in _FILE_FACTS},
    }
    for field, value in wanted.items():
        if found[field] != value:
            raise CheckpointError(
                f"{path}: isn't the file that the manifest beside it describes: its {field} differs"
            )
    return found


def _check_optimizer(variable: EmbeddingVariable, save: _Save, entry: VariableEntry) -> None:
    if variable.optimizer is None:
        return  # it can't be trained, so it needs no slots
    saved = entry.optimizer
    if saved is not None and (saved.name, saved.slots) == (
        variable.optimizer.name,
        variable.optimizer.slots,
    ):
        return
    raise CheckpointError(
        f"{save.directory}: {variable.name} was saved with {_described(saved)}, but has "
        f"{_described(_optimizer_entry(variable.optimizer))} now; restore it with the optimizer "
        "that it was saved with, or without one for look-ups alone"
    )


def _described(optimizer: OptimizerEntry | None) -> str:
    if optimizer is None:
        return "no optimizer"
    return f"{optimizer.name} (slots: {', '.join(optimizer.slots) or 'none'})"


def _check_sketches(
    variable: EmbeddingVariable, save: _Save, shapes: set[tuple[int, int, int]]
) -> None:
    option = variable.ev_option.filter_option
    if not isinstance(option, (CounterFilter, CBFFilter)) or option.filter_freq == 0 or not shapes:
        return
    if shapes == {variable._shards[0].sketch_shape()}:
        return
    raise CheckpointError(
        f"{save.directory}: the keys of {variable.name} that wait at its filter were saved in a "
        f"sketch which its {type(option).__name__} can't go on with; give it the CBFFilter that "
        f"it was saved with, or set {SAVE_FILTERED_FEATURES}=0 to leave these keys out"
    )


def _check_room(variable: EmbeddingVariable, bound: list[int], files: list[list[str]]) -> None:
    rooms = [_capacity_rows(shard) for shard in variable._shards]

    def fits(rows: list[int]) -> bool:
        return all(room is None or n <= room for n, room in zip(rows, rooms, strict=True))

    # The rows of several saves may be the same ones, which takes another look at the files to tell.
    if fits(bound) or (len(files) > 1 and fits(bound := _core.count_rows(files, len(rooms)))):
        return
    rows, room = max(
        ((n, room) for n, room in zip(bound, rooms, strict=True) if room is not None),
        key=lambda pair: pair[0] - pair[1],
    )
    raise StoreFullError(
        f"{variable.name}: the checkpoint has {rows} rows for a partition whose tiers hold {room}; "
        "raise storage_size"
    )


def _capacity_rows(shard: Shard) -> int | None:
    capacities = [tier["capacity_rows"] for tier in shard.stats()["tiers"]]
    return None if None in capacities else sum(capacities)


# --- Arguments


def _check_variables(variables: Sequence[EmbeddingVariable]) -> list[EmbeddingVariable]:
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
    names = [variable.name for variable in chosen]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"variables: two of them are named {name}")
    return chosen


def _path(path: PathLike) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidArgumentError(f"path must name a directory, got {path!r}")
    return Path(path)


def _saves_waiting_keys() -> bool:
    value = os.environ.get(SAVE_FILTERED_FEATURES, "").lower()
    if value in ("", "1", "true"):
        return True
    if value in ("0", "false"):
        return False
    raise InvalidArgumentError(
        f"{SAVE_FILTERED_FEATURES} must be 1 or True, or 0 or False, got {value}"
    )


@contextlib.contextmanager
def _checkpoint_locks(variables: Sequence[EmbeddingVariable]) -> Iterator[None]:
    """Keeps saves and restores of a variable apart; ForkedError where it was inherited."""
    for variable in variables:
        variable._refuse_if_forked()
    with contextlib.ExitStack() as stack:
        for variable in sorted(variables, key=id):  # one order for all threads
            stack.enter_context(variable._checkpoint_lock)
        yield
