"""Checkpoints of a job: its tables, and what its workers keep beside them, of the same step.

    FOLDER/step-000000001200/tables/           a save of the variables (see `embstore.save`)
    FOLDER/step-000000001200/state/            files of the program's own: dense weights, say
    FOLDER/step-000000001200/checkpoint.json   the step; of each file in state, bytes and SHA-256

A checkpoint is written under another name, and gets its own when the medium has all of it. What is
begun and never named is removed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embstore._saves import sync
from embstore.errors import CheckpointError, StorageError

__all__ = ["JobCheckpoint", "JobCheckpoints"]

_NAMED = re.compile(r"step-(\d{12})")
_UNFINISHED = ".unfinished-"
_MANIFEST = "checkpoint.json"
_FORMAT = 1


@dataclass(frozen=True)
class JobCheckpoint:
    """step: so many were done. path: of the folder with the files that the program keeps."""

    step: int
    folder: Path

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def path(self) -> Path:
        return self.folder / "state"

    def check(self) -> None:
        """CheckpointError, which names the file, where one isn't as it was written."""
        manifest = self.folder / _MANIFEST
        try:
            told: dict[str, Any] = json.loads(manifest.read_text())
            files = {name: (file["bytes"], file["sha256"]) for name, file in told["files"].items()}
            is_whole = (told["format"], told["step"]) == (_FORMAT, self.step)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{manifest}: can't be read: {error}") from error
        if not is_whole:
            raise CheckpointError(f"{manifest}: is of another version or step")
        found = _described(self.path)
        for name in sorted(files.keys() | found.keys()):
            if files.get(name) != found.get(name):
                raise CheckpointError(
                    f"{self.path / name}: isn't as it was written; remove {self.folder} to go back "
                    "to the checkpoint before"
                )


class JobCheckpoints:
    """In a folder that all nodes share; made if its parent exists.

    keep: so many are left, the newest.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder = Path(folder)
        self._keep = keep

    def newest(self) -> JobCheckpoint | None:
        all_of_them = self._all()
        return all_of_them[-1] if all_of_them else None

    def begin(self) -> JobCheckpoint:
        """One that nobody will see until it is published."""
        try:
            self.folder.mkdir(exist_ok=True)
            begun = JobCheckpoint(0, self.folder / f"{_UNFINISHED}{uuid.uuid4().hex}")
            begun.path.mkdir(parents=True)
        except OSError as error:
            raise StorageError(
                f"checkpoints: {self.folder} can't be written to: {error}"
            ) from error
        return begun

    def finish(self, begun: JobCheckpoint, step: int) -> None:
        """Brings to the medium what the program wrote, and what it is known by."""
        files = {
            name: {"bytes": size, "sha256": digest}
            for name, (size, digest) in _described(begun.path).items()
        }
        manifest = begun.folder / _MANIFEST
        manifest.write_text(json.dumps({"format": _FORMAT, "step": step, "files": files}, indent=1))
        for path in (*begun.path.rglob("*"), begun.path, manifest, begun.folder):
            if path.is_dir():
                sync(path)
            else:
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def publish(self, written: Path, step: int) -> None:
        """Names a finished one, whose step is later than all others'."""
        name = f"step-{step:012d}"
        newest = self.newest()
        if newest is not None and newest.step >= step:
            raise CheckpointError(
                f"{self.folder}: has a checkpoint of step {newest.step}, and this one would be of "
                f"step {step}; go on from that one (restore), or give another folder"
            )
        written.rename(self.folder / name)
        sync(self.folder)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old.folder)
        for unfinished in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def _all(self) -> list[JobCheckpoint]:
        try:
            found = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        named = [(match, path) for path in found if (match := _NAMED.fullmatch(path.name))]
        return [JobCheckpoint(int(match[1]), path) for match, path in named]


def _described(folder: Path) -> dict[str, tuple[int, str]]:
    """Of each file, its bytes and SHA-256."""
    described = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            described[str(path.relative_to(folder))] = path.stat().st_size, digest
    return described
