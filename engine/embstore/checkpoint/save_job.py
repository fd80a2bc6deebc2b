"""Writes the files of one save."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from embstore.checkpoint.arguments import eviction_limits
from embstore.checkpoint.manifest import VariableEntry
from embstore.table.internals import between_batches
from embstore.table.shard import LocalSave, LocalShard, SavedShard, SaveRequest
from embstore.table.uninterrupted import uninterrupted
from embstore.variable import EmbeddingVariable

__all__ = ["SaveJob", "quoted"]

_MAX_AT_ONCE = 32  # partitions written at a time: each takes up to 4 MiB and two threads


@dataclass(frozen=True)
class SaveJob:
    """A writer of a save's files, with the settings that all of them share."""

    save_id: str
    global_step: int | None  # as of `save`
    incremental: bool
    waiting_keys: bool
    skip_damaged: bool

    def write(
        self, variable: EmbeddingVariable, directory: Path, number: int
    ) -> tuple[VariableEntry, list[SavedShard]]:
        """Writes a variable's files; returns the manifest's entry, and each shard's result.

        number: the variable's index in the save; it keeps file names distinct, as `quoted` cuts
            long names.
        """
        names = [
            f"{quoted(variable.name)}-{number}.{partition}.rows"
            for partition in range(variable.partition_num)
        ]
        paths = [str(directory / name) for name in names]
        shards = [shard for shard in variable.internals.shards if isinstance(shard, LocalShard)]
        if len(shards) == variable.partition_num:
            parts = self._write_beside_updates(variable, shards, paths)
        else:
            parts = self._write_at_servers(variable, paths)
        files = list(zip(names, parts, strict=True))
        entry = VariableEntry.of(
            variable,
            files,
            total_rows=sum(part.rows_left - part.skipped.size for part in parts),
            follows=variable.internals.last_save if self.incremental else None,
        )
        return entry, parts

    def _write_beside_updates(
        self, variable: EmbeddingVariable, shards: Sequence[LocalShard], paths: Sequence[str]
    ) -> list[SavedShard]:
        """Begins the saves of all partitions between two batches, then writes some at a time.

        Ctrl-C stops the saves, and is raised when all have ended: otherwise a second Ctrl-C, while
        the writing threads end, would leave a save begun, and the next save would wait for its end.
        """
        requests = self._requests(variable, paths)
        saves: list[LocalSave] = []
        is_stopped = False

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True
            for save in saves:
                save.stop()

        with uninterrupted(stop), contextlib.ExitStack() as prepared:
            for shard, request in zip(shards, requests, strict=True):
                saves.append(prepared.enter_context(shard.prepare_save(request)))
            with between_batches([variable]):
                for save in saves:
                    save.begin(self.waiting_keys)
            if is_stopped:  # the signal came before all saves were in the list
                stop()
            at_once = min(len(saves), _MAX_AT_ONCE)
            with ThreadPoolExecutor(at_once, thread_name_prefix="embstore-save") as threads:
                return list(threads.map(lambda save: save.write(self.skip_damaged), saves))

    def _write_at_servers(
        self, variable: EmbeddingVariable, paths: Sequence[str]
    ) -> list[SavedShard]:
        """Has partitions in other processes written one after the other; this process's updates
        wait.
        """
        requests = self._requests(variable, paths)
        with between_batches([variable]):
            parts = [
                shard.save(request, waiting_keys=self.waiting_keys, skip_damaged=self.skip_damaged)
                for shard, request in zip(variable.internals.shards, requests, strict=True)
            ]
            variable.internals.forget_evicted(*eviction_limits(variable, self.global_step))
            return parts

    def _requests(self, variable: EmbeddingVariable, paths: Sequence[str]) -> list[SaveRequest]:
        least_version, least_half_square = eviction_limits(variable, self.global_step)
        return [
            SaveRequest(
                path,
                save_id=bytes.fromhex(self.save_id),
                partition=partition,
                partition_count=len(paths),
                incremental=self.incremental,
                least_version=least_version,
                least_half_square=least_half_square,
            )
            for partition, path in enumerate(paths)
        ]


def quoted(name: str) -> str:
    return quote(name, safe="")[:64]  # callers append a number, so that cut names differ
