"""How a variable is restored from a checkpoint of its pools."""

from __future__ import annotations

from dataclasses import dataclass

from embstore._manifest import VariableEntry
from embstore._restore_plan import SaveOnMedium, check_optimizer, check_sketches, verify_file
from embstore._variable_entry import saved_state
from embstore.errors import CheckpointError, ClosedError, EmbStoreError
from embstore.variable import EmbeddingVariable

__all__ = ["PersistedRestorePlan"]


@dataclass(frozen=True)
class PersistedRestorePlan:
    """How one variable is restored; everything in it was verified."""

    variable: EmbeddingVariable
    entry: VariableEntry
    files: list[list[str]]
    numbers: list[int]  # of the checkpoint in each partition's pool
    waiting_keys: bool

    @classmethod
    def make(
        cls, variable: EmbeddingVariable, found: SaveOnMedium, waiting_keys: bool
    ) -> PersistedRestorePlan:
        entry = found.entry(variable.name)
        if entry is None:
            names = ", ".join(entry.name for entry in found.manifest.variables)
            raise CheckpointError(
                f"{found.directory}: has no variable {variable.name}, only {names}"
            )
        if (entry.dim, entry.partition_num) != (variable.dim, variable.partition_num):
            raise CheckpointError(
                f"{found.directory}: {variable.name} had dim {entry.dim} and partition_num "
                f"{entry.partition_num}, but has {variable.dim} and {variable.partition_num} now; "
                "rows in a pool stay as they are (es.save() and es.restore() change them)"
            )
        check_optimizer(variable, found, entry)
        shapes: set[tuple[int, int, int]] = set()
        for partition, file in enumerate(entry.files):
            verified = verify_file(found, entry, partition, file, len(entry.files))
            if not verified["is_placed_by_hash"]:
                raise CheckpointError(
                    f"{found.directory}: {variable.name} was persisted by an earlier version, "
                    f"which put key k into partition k modulo {entry.partition_num}, and rows in a "
                    "pool stay where they are; with that version es.save() it, and es.restore() "
                    "the save here"
                )
            shapes.update(verified["sketch_shapes"])
        if waiting_keys:
            check_sketches(variable, found, shapes)
        wanted = bytes.fromhex(found.manifest.save_id)
        numbers = []
        for shard in variable._shards:
            held = {part.checkpoint_id: part.number for part in shard.persisted()}
            if wanted not in held:
                pool = shard.stats()["tiers"][1]["path"]
                raise CheckpointError(
                    f"{found.directory}: its rows of {variable.name} aren't in {pool}; is that "
                    "another pool, or was it given up?"
                )
            numbers.append(held[wanted])
        files = [[str(found.directory / file.name) for file in entry.files]]
        return cls(variable, entry, files, numbers, waiting_keys)

    def carry_out(self) -> None:
        variable, entry = self.variable, self.entry
        state = saved_state(variable, entry)
        variable._forget_prefetched()
        with variable._partitions_lock:
            variable._last_save = None
            variable._rate_changes += 1
            try:
                for partition, (shard, number) in enumerate(
                    zip(variable._shards, self.numbers, strict=True)
                ):
                    shard.restore_persisted(
                        number,
                        self.files,
                        partition=partition,
                        partition_count=len(variable._shards),
                        state=state,
                        waiting_keys=self.waiting_keys,
                    )
            except ClosedError:
                raise
            except EmbStoreError as error:
                raise CheckpointError(f"{variable.name} is left empty: {error}") from error
        rows = sum(shard.size() for shard in variable._shards)
        if rows != entry.total_rows:
            raise CheckpointError(
                f"{variable.name}: its pool had {rows} of the checkpoint's {entry.total_rows} rows"
            )
