"""A variable as manifests describe it, and what they tell of the state that it was in."""

from __future__ import annotations

from collections.abc import Sequence

from embstore.checkpoint.manifest import FILE_FACTS, FileEntry, OptimizerEntry, VariableEntry
from embstore.table.shard import BegunShard, SavedShard, ShardState
from embstore.variable import EmbeddingVariable

__all__ = ["saved_state", "variable_entry"]


def variable_entry(
    variable: EmbeddingVariable,
    files: Sequence[tuple[str, SavedShard | BegunShard]],
    *,
    total_rows: int,
    follows: str | None = None,
) -> VariableEntry:
    """files: the name of each partition's, and what its shard said of it."""
    state = files[0][1].state  # but for the clock, that of all
    return VariableEntry(
        name=variable.name,
        dim=variable.dim,
        optimizer=OptimizerEntry.of(variable.optimizer),
        apply_count=state.apply_count,
        beta1_power=state.beta1_power,
        beta2_power=state.beta2_power,
        learning_rate=None if variable.optimizer is None else state.learning_rate,
        clock=max(part.state.clock for _, part in files),
        follows=follows,
        total_rows=total_rows,
        files=tuple(
            FileEntry(name, **{fact: getattr(part, fact) for fact in FILE_FACTS})
            for name, part in files
        ),
    )


def saved_state(variable: EmbeddingVariable, entry: VariableEntry) -> ShardState:
    """The state that each shard gets back. A learning rate that wasn't saved stays as it is."""
    learning_rate = entry.learning_rate
    if variable.optimizer is None or learning_rate is None:
        learning_rate = variable.internals.shards[0].learning_rate()
    return ShardState(
        apply_count=entry.apply_count,
        beta1_power=entry.beta1_power,
        beta2_power=entry.beta2_power,
        learning_rate=learning_rate,
        clock=entry.clock,
    )
