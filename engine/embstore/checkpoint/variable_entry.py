"""Manifest entries of variables, and the shards' states that are restored from them."""

from __future__ import annotations

from collections.abc import Sequence

from embstore.checkpoint.manifest import (
    FILE_FIELDS,
    STATE_FIELDS,
    FileEntry,
    OptimizerEntry,
    VariableEntry,
)
from embstore.table.shard import ShardState, WrittenShard
from embstore.variable import EmbeddingVariable

__all__ = ["saved_states", "variable_entry"]


def variable_entry(
    variable: EmbeddingVariable,
    files: Sequence[tuple[str, WrittenShard]],
    *,
    total_rows: int,
    follows: str | None = None,
) -> VariableEntry:
    """Returns a variable's manifest entry. files: each partition's file name and shard's result."""
    states = [part.state for _, part in files]
    return VariableEntry(
        name=variable.name,
        dim=variable.dim,
        optimizer=OptimizerEntry.from_optimizer(variable.optimizer),
        learning_rate=None if variable.optimizer is None else states[0].learning_rate,
        clock=max(state.clock for state in states),
        follows=follows,
        total_rows=total_rows,
        files=tuple(
            FileEntry(
                name,
                **{fact: getattr(part, fact) for fact in FILE_FIELDS},
                **{count: getattr(part.state, count) for count in STATE_FIELDS},
            )
            for name, part in files
        ),
    )


def saved_states(variable: EmbeddingVariable, entry: VariableEntry) -> list[ShardState]:
    """Returns the state to restore in each shard: its own, or, if the number of shards differs, the
    state of the shard with most applies, so that no row's version is ahead of its shard. A learning
    rate that wasn't saved stays as it is.
    """
    learning_rate = entry.learning_rate
    if variable.optimizer is None or learning_rate is None:
        learning_rate = variable.internals.shards[0].learning_rate()
    shards = len(variable.internals.shards)
    files = entry.files
    if len(files) != shards:
        files = (max(files, key=lambda file: file.apply_count),) * shards
    return [
        ShardState(
            **{name: getattr(file, name) for name in STATE_FIELDS},
            learning_rate=learning_rate,
            clock=entry.clock,
        )
        for file in files
    ]
