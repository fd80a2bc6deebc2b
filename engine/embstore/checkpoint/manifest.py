"""The manifest of a save: a description of its files, as JSON with a checksum."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embstore.checkpoint.checksummed import checksummed, has_valid_checksum
from embstore.errors import CheckpointError
from embstore.files import read_file, reading_from
from embstore.table.shard import ShardState, WrittenShard

if TYPE_CHECKING:
    from embstore.optimizers import Optimizer
    from embstore.variable import EmbeddingVariable

__all__ = [
    "FILE_FIELDS",
    "FileEntry",
    "Manifest",
    "OptimizerEntry",
    "VariableEntry",
]

FILE_NAME = "manifest.json"
FORMAT = "embstore checkpoint"
VERSION = 3
READ_VERSIONS = (1, 2, 3)


@dataclass(frozen=True)
class FileEntry:
    """The file of one partition, with its shard's own count of applies and beta powers:
    asynchronous updates reach shards in different numbers."""

    name: str
    size: int
    checksum: int
    rows: int
    removed_keys: int
    waiting_keys: int
    sketches: int
    apply_count: int
    beta1_power: float
    beta2_power: float


# The fields that both the writer of a file and its verification report.
FILE_FIELDS = ("size", "checksum", "rows", "removed_keys", "waiting_keys", "sketches")
# The fields of the shard's state.
STATE_FIELDS = ("apply_count", "beta1_power", "beta2_power")


@dataclass(frozen=True)
class OptimizerEntry:
    name: str
    slots: tuple[str, ...]
    params: Mapping[str, float]

    @staticmethod
    def from_optimizer(optimizer: Optimizer | None) -> OptimizerEntry | None:
        if optimizer is None:
            return None
        return OptimizerEntry(optimizer.name, optimizer.slots, optimizer.params())


@dataclass(frozen=True)
class VariableEntry:
    name: str
    dim: int
    optimizer: OptimizerEntry | None
    learning_rate: float | None  # None: no optimizer, or a save of version 1, which lacks it
    clock: int
    follows: str | None  # the save_id that an incremental save continues
    total_rows: int  # the variable's rows, in this save or earlier ones
    files: tuple[FileEntry, ...]  # one for each partition, in order

    @staticmethod
    def of(
        variable: EmbeddingVariable,
        files: Sequence[tuple[str, WrittenShard]],
        *,
        total_rows: int,
        follows: str | None = None,
    ) -> VariableEntry:
        """Returns the entry of a variable. files: each partition's file name and shard's result."""
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

    @property
    def partition_num(self) -> int:
        return len(self.files)

    def states_for(self, variable: EmbeddingVariable) -> list[ShardState]:
        """Returns the state to restore in each shard: its own, or, if the number of shards differs,
        the state of the shard with most applies, so that no row's version is ahead of its shard. A
        learning rate that wasn't saved stays as it is.
        """
        learning_rate = self.learning_rate
        if variable.optimizer is None or learning_rate is None:
            learning_rate = variable.internals.shards[0].learning_rate()
        shards = len(variable.internals.shards)
        files = self.files
        if len(files) != shards:
            files = (max(files, key=lambda file: file.apply_count),) * shards
        return [
            ShardState(
                **{name: getattr(file, name) for name in STATE_FIELDS},
                learning_rate=learning_rate,
                clock=self.clock,
            )
            for file in files
        ]


@dataclass(frozen=True)
class Manifest:
    save_id: str
    kind: str  # "full" or "incremental"
    global_step: int
    variables: tuple[VariableEntry, ...]

    def write(self, directory: Path) -> None:
        """Writes the manifest into `directory`; the file's contents are durable on return."""
        with (directory / FILE_NAME).open("xb") as file:
            file.write(checksummed({"format": FORMAT, "version": VERSION, **asdict(self)}))
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def read(directory: Path) -> Manifest:
        """Returns the manifest of `directory`. Raises CheckpointError if it is missing, differs in
        a byte from what was written, or names files that don't lie beside it.
        """
        path = directory / FILE_NAME
        try:
            with reading_from(path):
                text = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(f"{path}: is missing") from None
        try:
            fields = json.loads(text)
            version = fields.pop("version")
            if fields.pop("format") == FORMAT and version not in READ_VERSIONS:
                raise CheckpointError(
                    f"{path}: its format has version {version}, and this program reads "
                    f"versions {READ_VERSIONS[0]} to {READ_VERSIONS[-1]}"
                )
            del fields["checksum"]
            if not has_valid_checksum(text):
                raise ValueError
            manifest = _manifest(fields, version)
            bytes.fromhex(manifest.save_id)
            names = [file.name for entry in manifest.variables for file in entry.files]
            not_beside = [name for name in names if not _is_file_name(name)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CheckpointError(f"{path}: is truncated or damaged") from None
        if not_beside:
            raise CheckpointError(
                f"{path}: names the file {not_beside[0]!r}, which is not beside it; a save has its "
                "files in one folder, so this is not what embstore wrote: take another copy"
            )
        return manifest


def _is_file_name(name: str) -> bool:
    """Returns whether `name` is the name of a file beside the manifest."""
    return name not in ("", "..") and "\0" not in name and Path(name).name == name


def _manifest(fields: dict[str, Any], version: int) -> Manifest:
    variables = tuple(_variable(entry, version) for entry in fields.pop("variables"))
    return Manifest(variables=variables, **fields)


def _variable(fields: dict[str, Any], version: int) -> VariableEntry:
    if version == 1:
        fields["learning_rate"] = None
    if version < 3:  # these had the counts of the first shard alone
        state_fields = {name: fields.pop(name) for name in STATE_FIELDS}
        fields["files"] = [{**file, **state_fields} for file in fields["files"]]
    optimizer = fields.pop("optimizer")
    if optimizer is not None:
        optimizer = OptimizerEntry(**{**optimizer, "slots": tuple(optimizer["slots"])})
    files = tuple(FileEntry(**entry) for entry in fields.pop("files"))
    return VariableEntry(optimizer=optimizer, files=files, **fields)
