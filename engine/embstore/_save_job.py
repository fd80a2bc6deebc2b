"""Writes the files of one save."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from embstore._manifest import VariableEntry
from embstore._shard import SavedShard
from embstore._variable_entry import variable_entry
from embstore.options import GlobalStepEvict, L2WeightEvict
from embstore.variable import EmbeddingVariable

__all__ = ["SaveJob", "quoted"]


@dataclass(frozen=True)
class SaveJob:
    """What all files of a save have in common."""

    save_id: str
    global_step: int
    incremental: bool
    waiting_keys: bool
    skip_damaged: bool

    def write(
        self, variable: EmbeddingVariable, directory: Path, number: int
    ) -> tuple[VariableEntry, list[SavedShard]]:
        """Writes a variable's files; returns the manifest's entry, and what each shard said.

        number: of the variable in the save, which tells apart those whose files are named alike.
        """
        least_version, least_half_square = _eviction(variable, self.global_step)
        files: list[tuple[str, SavedShard]] = []
        with variable._partitions_lock:  # so that every partition has the same batches
            for partition, shard in enumerate(variable._shards):
                name = f"{quoted(variable.name)}-{number}.{partition}.rows"
                part = shard.save(
                    str(directory / name),
                    save_id=bytes.fromhex(self.save_id),
                    partition=partition,
                    partition_count=len(variable._shards),
                    incremental=self.incremental,
                    least_version=least_version,
                    least_half_square=least_half_square,
                    waiting_keys=self.waiting_keys,
                    skip_damaged=self.skip_damaged,
                )
                files.append((name, part))
        parts = [part for _, part in files]
        entry = variable_entry(
            variable,
            files,
            total_rows=sum(part.rows_left - part.skipped.size for part in parts),
            follows=variable._last_save if self.incremental else None,
        )
        return entry, parts


def quoted(name: str) -> str:
    return quote(name, safe="")[:64]  # a number after it tells names apart


def _eviction(variable: EmbeddingVariable, global_step: int) -> tuple[int | None, float | None]:
    """The least version, and the least half square of the weights, that rows must have to stay."""
    option = variable.ev_option.evict_option
    if isinstance(option, GlobalStepEvict):
        return global_step - option.steps_to_live, None
    if isinstance(option, L2WeightEvict):
        return None, option.l2_weight_threshold
    return None, None
