"""Plans of restores from checkpoints of durable pools."""

from __future__ import annotations

from embstore.checkpoint.restore_plan import (
    RestorePlan,
    SaveOnMedium,
    check_sketches,
    verified_files,
)
from embstore.errors import CheckpointError
from embstore.variable import EmbeddingVariable

__all__ = ["plan_restore_persisted"]


def plan_restore_persisted(
    variable: EmbeddingVariable, found: SaveOnMedium, waiting_keys: bool
) -> RestorePlan:
    entry = found.entry_of(variable)
    if (entry.dim, entry.partition_num) != (variable.dim, variable.partition_num):
        raise CheckpointError(
            f"{found.directory}: {variable.name} had dim {entry.dim} and partition_num "
            f"{entry.partition_num}, but has {variable.dim} and {variable.partition_num} now; "
            "rows in a pool stay as they are (es.save() and es.restore() change them)"
        )
    verified = verified_files(variable, found, entry)
    if not all(file["is_placed_by_hash"] for file in verified):
        raise CheckpointError(
            f"{found.directory}: {variable.name} was persisted by an earlier version, "
            f"which put key k into partition k modulo {entry.partition_num}, and rows in a "
            "pool stay where they are; with that version es.save() it, and es.restore() "
            "the save here"
        )
    if waiting_keys:
        check_sketches(variable, found, verified)
    checkpoint_id = bytes.fromhex(found.manifest.save_id)
    numbers = []
    for shard in variable.internals.shards:
        pool_numbers = {part.checkpoint_id: part.number for part in shard.persisted()}
        if checkpoint_id not in pool_numbers:
            pool = shard.stats()["tiers"][1]["path"]
            raise CheckpointError(
                f"{found.directory}: its rows of {variable.name} aren't in {pool}; is that "
                "another pool, or was it given up?"
            )
        numbers.append(pool_numbers[checkpoint_id])
    return RestorePlan(variable, found, entry, [found.paths(entry)], waiting_keys, numbers)
