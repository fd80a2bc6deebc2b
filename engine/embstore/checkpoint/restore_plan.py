"""Plans of restores: everything is verified before the first row changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embstore import _core
from embstore.checkpoint.manifest import (
    FILE_FIELDS,
    FileEntry,
    Manifest,
    OptimizerEntry,
    VariableEntry,
)
from embstore.errors import (
    CheckpointError,
    ClosedError,
    EmbStoreError,
    ShardLostError,
    StoreFullError,
    WorkerLostError,
)
from embstore.optimizers import Optimizer
from embstore.options import CBFFilter, CounterFilter
from embstore.table.internals import between_batches
from embstore.table.shard import RestoreRequest, Shard, ShardState
from embstore.variable import EmbeddingVariable

__all__ = [
    "SAVE_FILTERED_FEATURES",
    "RestorePlan",
    "SaveOnMedium",
    "check_room_of_successor",
    "check_sketches",
    "plan_restore",
    "verified_files",
    "verified_files_for",
]

SAVE_FILTERED_FEATURES = "TF_EV_SAVE_FILTERED_FEATURES"


@dataclass(frozen=True)
class SaveOnMedium:
    """A save in a directory, with its manifest."""

    directory: Path
    manifest: Manifest

    @staticmethod
    def open(directory: Path) -> SaveOnMedium:
        return SaveOnMedium(directory, Manifest.read(directory))

    def entry(self, name: str) -> VariableEntry | None:
        return next((entry for entry in self.manifest.variables if entry.name == name), None)

    def entry_of(self, variable: EmbeddingVariable) -> VariableEntry:
        """Returns the variable's entry. Raises CheckpointError if the save has none."""
        entry = self.entry(variable.name)
        if entry is None:
            names = ", ".join(entry.name for entry in self.manifest.variables)
            raise CheckpointError(
                f"{self.directory}: has no variable {variable.name}, only {names}"
            )
        return entry

    def renamed(self, names: Sequence[str]) -> SaveOnMedium:
        """Returns the same save with these names for its variables, in their order."""
        entries = zip(self.manifest.variables, names, strict=True)
        renamed = tuple(replace(entry, name=name) for entry, name in entries)
        return replace(self, manifest=replace(self.manifest, variables=renamed))

    def paths(self, entry: VariableEntry) -> list[str]:
        return [str(self.directory / file.name) for file in entry.files]


@dataclass(frozen=True)
class RestorePlan:
    """A verified plan to restore one variable.

    pool_numbers: the number of the checkpoint in each partition's pool, which has the rows; None:
        the files of saves have the rows.
    key_range: the least and the greatest key with a row in the files; if there are no rows, the
        least is above the greatest. None: pools have the rows.
    """

    variable: EmbeddingVariable
    newest: SaveOnMedium
    entry: VariableEntry  # of the newest save
    chain: list[list[str]]  # files, the newest save's first
    waiting_keys: bool
    pool_numbers: list[int] | None = None
    key_range: tuple[int, int] | None = None

    def carry_out(self) -> None:
        """Restores the variable. REQUIRES: its `checkpoint_locks` are held."""
        variable, internals = self.variable, self.variable.internals
        states = self.entry.states_for(variable)
        internals.forget_prefetched()
        with between_batches([variable]):
            internals.last_save = None
            internals.rate_changes += 1
            try:
                self._fill(self.chain, states)
            except (ClosedError, ShardLostError, WorkerLostError):
                raise  # the shards can't be emptied any more; a job starts again
            except BaseException as error:
                if self.pool_numbers is None:
                    self._fill([], states)  # empties all shards: a part of the rows is no use
                if not isinstance(error, EmbStoreError):
                    raise
                raise CheckpointError(f"{variable.name} is left empty: {error}") from error
        if self.pool_numbers is None:
            internals.last_save = self.newest.manifest.save_id
        elif (rows := len(variable)) != self.entry.total_rows:
            raise CheckpointError(
                f"{variable.name}: its pool had {rows} of the checkpoint's "
                f"{self.entry.total_rows} rows"
            )

    def _fill(self, chain: list[list[str]], states: list[ShardState]) -> None:
        shards = self.variable.internals.shards
        for partition, (shard, state) in enumerate(zip(shards, states, strict=True)):
            request = RestoreRequest(chain, partition, len(shards), state, self.waiting_keys)
            if self.pool_numbers is None:
                shard.restore(request)
            else:
                shard.restore_persisted(self.pool_numbers[partition], request)


def plan_restore(
    variable: EmbeddingVariable, saves: list[SaveOnMedium], waiting_keys: bool
) -> RestorePlan:
    chain = _linked_saves(variable, saves)
    found: list[dict[str, Any]] = []  # the facts about the files of all saves
    for save, entry in chain:
        verified = verified_files(variable, save, entry)
        found += verified
    newest, entry = chain[-1]
    if waiting_keys:
        check_sketches(variable, newest, verified)
    files = [save.paths(entry) for save, entry in chain[::-1]]
    _check_room(variable, _rows_by_partition(found), files)
    keys = min(file["least_key"] for file in found), max(file["greatest_key"] for file in found)
    return RestorePlan(variable, newest, entry, files, waiting_keys, key_range=keys)


def _linked_saves(
    variable: EmbeddingVariable, saves: list[SaveOnMedium]
) -> list[tuple[SaveOnMedium, VariableEntry]]:
    """Returns the saves that have the variable, each with its entry. Raises CheckpointError if they
    don't follow one another.
    """
    full, *increments = saves
    chain = [(full, full.entry_of(variable))]
    for save in increments:
        entry = save.entry(variable.name)
        if entry is None:
            continue  # the variable wasn't in this save; its next one follows the one before
        if entry.follows != chain[-1][0].manifest.save_id:
            raise CheckpointError(
                f"{save.directory}: what it holds of {variable.name} doesn't follow "
                f"{chain[-1][0].directory}; give the full save and every incremental one after "
                "it, in order"
            )
        chain.append((save, entry))
    return chain


def verified_files(
    variable: EmbeddingVariable, save: SaveOnMedium, entry: VariableEntry
) -> list[dict[str, Any]]:
    """Returns the core's facts about each file of the variable. Raises CheckpointError if a file
    isn't as the manifest describes it, or the variable has another optimizer.
    """
    return verified_files_for(
        variable.name, variable.optimizer, variable.partition_num, save, entry
    )


def verified_files_for(
    name: str,
    optimizer: Optimizer | None,
    partition_num: int,
    save: SaveOnMedium,
    entry: VariableEntry,
) -> list[dict[str, Any]]:
    """Does the same as `verified_files` for a variable that needn't be made yet."""
    _check_optimizer(name, optimizer, save, entry)
    return [
        _verified(save, entry, partition, file, partition_num)
        for partition, file in enumerate(entry.files)
    ]


def _verified(
    save: SaveOnMedium, entry: VariableEntry, partition: int, file: FileEntry, partition_count: int
) -> dict[str, Any]:
    path = save.directory / file.name
    found = _core.verify_rows(str(path), partition_count)
    expected = {
        "save_id": bytes.fromhex(save.manifest.save_id),
        "dim": entry.dim,
        "slot_count": len(entry.optimizer.slots) if entry.optimizer else 0,
        "partition": partition,
        "partition_count": entry.partition_num,
        "incremental": save.manifest.kind == "incremental",
        **{field: getattr(file, field) for field in FILE_FIELDS},
    }
    for field, value in expected.items():
        if found[field] != value:
            raise CheckpointError(
                f"{path}: isn't the file that the manifest beside it describes: its {field} differs"
            )
    return found


def _check_optimizer(
    name: str, optimizer: Optimizer | None, save: SaveOnMedium, entry: VariableEntry
) -> None:
    if optimizer is None:
        return  # the variable can't be trained, so it needs no slots
    saved = entry.optimizer
    if saved is not None and (saved.name, saved.slots) == (
        optimizer.name,
        optimizer.slots,
    ):
        return
    raise CheckpointError(
        f"{save.directory}: {name} was saved with {_describe(saved)}, but has "
        f"{_describe(OptimizerEntry.from_optimizer(optimizer))} now; restore it with the optimizer "
        "that it was saved with, or without one for look-ups alone"
    )


def _describe(optimizer: OptimizerEntry | None) -> str:
    if optimizer is None:
        return "no optimizer"
    return f"{optimizer.name} (slots: {', '.join(optimizer.slots) or 'none'})"


def check_sketches(
    variable: EmbeddingVariable, save: SaveOnMedium, verified: Sequence[dict[str, Any]]
) -> None:
    """Raises CheckpointError if the variable's filter can't continue with the saved sketches.

    verified: the save's `verified_files`.
    """
    shapes = {shape for file in verified for shape in file["sketch_shapes"]}
    option = variable.ev_option.filter_option
    if not isinstance(option, (CounterFilter, CBFFilter)) or option.filter_freq == 0 or not shapes:
        return
    if shapes == {variable.internals.shards[0].sketch_shape()}:
        return
    raise CheckpointError(
        f"{save.directory}: the keys of {variable.name} that wait at its filter were saved in a "
        f"sketch which its {type(option).__name__} can't go on with; give it the CBFFilter that "
        f"it was saved with, or set {SAVE_FILTERED_FEATURES}=0 to leave these keys out"
    )


def check_room_of_successor(
    variable: EmbeddingVariable, optimizer: Optimizer | None, verified: Sequence[dict[str, Any]]
) -> None:
    """Raises StoreFullError if the rows of a save don't fit a variable that will be made in place
    of this one, with `optimizer` and all else equal.

    verified: the save's `verified_files`.
    """
    # The number of blocks in a row: one for its weights, and one for each slot.
    before, after = (1 + len(rule.slots) if rule else 1 for rule in (variable.optimizer, optimizer))
    if before != after and variable.ev_option.storage_option.durability is not None:
        return  # in a pool a row's size isn't a number of blocks; the restore itself checks
    capacities = [_capacity_rows(shard, before, after) for shard in variable.internals.shards]
    row_counts = _rows_by_partition(verified)
    if not _fit(row_counts, capacities):
        raise _store_full(variable, row_counts, capacities)


def _check_room(variable: EmbeddingVariable, row_counts: list[int], files: list[list[str]]) -> None:
    capacities = [_capacity_rows(shard) for shard in variable.internals.shards]
    # Several saves may have the same rows: only if the sum doesn't fit, the files are read to count
    # distinct rows.
    if _fit(row_counts, capacities) or (
        len(files) > 1 and _fit(row_counts := _core.count_rows(files, len(capacities)), capacities)
    ):
        return
    raise _store_full(variable, row_counts, capacities)


def _rows_by_partition(verified: Sequence[dict[str, Any]]) -> list[int]:
    counts_per_file = [file["rows_by_partition"] for file in verified]
    return [sum(rows) for rows in zip(*counts_per_file, strict=True)]


def _fit(rows: list[int], capacities: list[int | None]) -> bool:
    return all(
        capacity is None or n <= capacity for n, capacity in zip(rows, capacities, strict=True)
    )


def _store_full(
    variable: EmbeddingVariable, row_counts: list[int], capacities: list[int | None]
) -> StoreFullError:
    rows, capacity = max(
        (
            (n, capacity)
            for n, capacity in zip(row_counts, capacities, strict=True)
            if capacity is not None
        ),
        key=lambda pair: pair[0] - pair[1],
    )
    return StoreFullError(
        f"{variable.name}: the checkpoint has {rows} rows for a partition whose tiers hold "
        f"{capacity}; raise storage_size"
    )


def _capacity_rows(shard: Shard, before: int = 1, after: int = 1) -> int | None:
    """Returns how many rows of `after` blocks fit a shard whose rows have `before` blocks now, or
    None if a tier is unlimited.
    """
    capacities: list[Any] = [tier["capacity_rows"] for tier in shard.stats()["tiers"]]
    if None in capacities:
        return None
    # A tier's size may exceed that of its rows by almost a row.
    return sum(int(((rows + 1) * before - 1) // after) for rows in capacities)
