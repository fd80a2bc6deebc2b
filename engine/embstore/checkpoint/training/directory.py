"""The folder of checkpoints of a training, which is one process or a job of several workers.

    FOLDER/pools/                              checkpoints of durable pools (see `embstore.persist`)
    FOLDER/step-000000001200/tables/           a save of the other variables (see `embstore.save`)
    FOLDER/step-000000001200/state/            the program's own files, such as dense weights
    FOLDER/step-000000001200/checkpoint.json   the step; of each file in state, bytes and SHA-256;
                                               of the pools' checkpoint, number, id and nodes;
                                               its own checksum

A checkpoint is written in a folder of the job, and is renamed to its final name once all of it is
durable. A starting job removes the folders of other jobs, so that a job whose driver died, but
which lives on for a while, can't publish a checkpoint any more. A process that trains alone is a
job, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embstore.checkpoint.checksummed import checksummed, has_valid_checksum
from embstore.checkpoint.directories import (
    number_in_name,
    numbered_entries,
    reading,
    remove_unless_read,
)
from embstore.errors import CheckpointError, ClosedError, InvalidArgumentError, StorageError
from embstore.files import make_directory, read_file, reading_from, rename, sync

__all__ = ["PoolCheckpoint", "TrainingCheckpoint", "TrainingDirectory"]

_CHECKPOINT_NAME = re.compile(r"step-(\d{12,})")
_UNFINISHED = ".unfinished-"  # a job's folder
_REMOVED = ".removed-"
_MANIFEST = "checkpoint.json"
_FORMAT = 2
_FORMAT_WITHOUT_CHECKSUM = 1  # an older format, which is still read
_DIGEST_CHUNK_BYTES = 1 << 18  # bytes


@dataclass(frozen=True)
class PoolCheckpoint:
    """The checkpoint of the variables with durable pools.

    number, id: as in the pools' list. places: for each variable, each shard's `Shard.place`, the
        resource that only its node has.
    """

    number: int
    id: str
    places: dict[str, list[str]]


@dataclass(frozen=True)
class TrainingCheckpoint:
    """A checkpoint. step: number of steps done. path: the folder of the program's own files."""

    step: int
    folder: Path

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def path(self) -> Path:
        return self.folder / "state"

    def check(self) -> None:
        """Verifies the program's files. Raises CheckpointError, which names the file, if one isn't
        as it was written, and StorageError if one can't be read.
        """
        files, _ = self._read_manifest()
        with reading_from(self.path):
            found = _sizes_and_digests(self.path)
        for name in sorted(files.keys() | found.keys()):
            if files.get(name) != found.get(name):
                raise self._damaged(self.path / name, "isn't as it was written")

    def _damaged(self, file: Path, why: str) -> CheckpointError:
        return CheckpointError(
            f"{file}: {why}; remove {self.folder} to go back to the checkpoint before"
        )

    def pool_checkpoint(self) -> PoolCheckpoint | None:
        """Returns the pools' checkpoint, or None. Raises CheckpointError if the manifest is bad."""
        return self._read_manifest()[1]

    def _read_manifest(self) -> tuple[dict[str, tuple[int, str]], PoolCheckpoint | None]:
        manifest = self.folder / _MANIFEST
        try:
            with reading_from(manifest):
                text = read_file(manifest)
        except (FileNotFoundError, NotADirectoryError):
            raise self._damaged(manifest, "is missing") from None
        try:
            fields: dict[str, Any] = json.loads(text)
            files = {
                name: (file["bytes"], file["sha256"]) for name, file in fields["files"].items()
            }
            pools = None if fields["pools"] is None else PoolCheckpoint(**fields["pools"])
            is_ours = (
                fields["format"] in (_FORMAT, _FORMAT_WITHOUT_CHECKSUM)
                and fields["step"] == self.step
            )
            is_whole = fields["format"] == _FORMAT_WITHOUT_CHECKSUM or has_valid_checksum(text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._damaged(manifest, "is truncated or damaged") from None
        if not is_ours:
            raise CheckpointError(f"{manifest}: is of another version or step")
        if not is_whole:
            raise self._damaged(manifest, "is truncated or damaged")
        return files, pools


class TrainingDirectory:
    """The checkpoints in a folder that all nodes share; made if its parent exists.

    job: the result of `take_over` in another process; readers need none. keep: number of newest
        checkpoints that are kept.
    """

    def __init__(self, folder: str | os.PathLike[str], job: str = "", keep: int = 2) -> None:
        self.folder = Path(folder)
        self._job = job
        self._keep = keep
        self._has_left = False

    @property
    def pools(self) -> Path:
        return self.folder.absolute() / "pools"

    @property
    def keep(self) -> int:
        return self._keep

    def take_over(self) -> str:
        """Begins a job, and stops earlier ones from finishing their checkpoints. Returns the name
        of this job's folder.
        """
        job = f"{_UNFINISHED}{uuid.uuid4().hex}"
        with self._naming_folder_in_errors():
            make_directory(self.folder, "checkpoints")
            for other in self.folder.glob(f"{_UNFINISHED}*"):
                with contextlib.suppress(FileNotFoundError):  # another job starts at the same time
                    other.rename(self.folder / f"{_REMOVED}{uuid.uuid4().hex}")
            (self.folder / job).mkdir()
        self._job = job
        for removed in self.folder.glob(f"{_REMOVED}*"):
            shutil.rmtree(removed, ignore_errors=True)
        return job

    def leave(self) -> None:
        """Removes unfinished checkpoints. No checkpoint can be begun any more."""
        self._has_left = True
        if self._job:  # a reader has no folder of its own
            shutil.rmtree(self.folder / self._job, ignore_errors=True)

    def newest(self) -> TrainingCheckpoint | None:
        checkpoints = self._checkpoints()
        return checkpoints[-1] if checkpoints else None

    @contextlib.contextmanager
    def reading_newest(self) -> Iterator[TrainingCheckpoint | None]:
        """Yields the newest checkpoint, or None. It is not removed in the scope, even if newer ones
        are published meanwhile.
        """
        while True:  # tries again if a newer one replaced this one before it was locked
            found = self.newest()
            if found is None:
                yield None
                return
            with reading(found.folder) as is_there:
                # A dangling link is listed too; check() reports it.
                if is_there or self.newest() == found:
                    yield found
                    return

    def begin(self) -> TrainingCheckpoint:
        """Begins a checkpoint, which readers don't see until it is published."""
        unpublished = TrainingCheckpoint(0, self.folder / self._job / uuid.uuid4().hex)
        with self._naming_folder_in_errors():
            unpublished.folder.mkdir()
            unpublished.path.mkdir()
        return unpublished

    def finish(
        self, unpublished: TrainingCheckpoint, step: int, pools: PoolCheckpoint | None = None
    ) -> None:
        """Writes the manifest, and makes it and the program's files durable.

        Raises InvalidArgumentError for a link that would lead elsewhere after the final rename.
        """
        with self._naming_folder_in_errors():
            _check_links_survive_rename(unpublished.path)
            files = {
                name: {"bytes": size, "sha256": digest}
                for name, (size, digest) in _sizes_and_digests(unpublished.path).items()
            }
            fields: dict[str, Any] = {"format": _FORMAT, "step": step, "files": files}
            fields["pools"] = None if pools is None else asdict(pools)
            manifest = unpublished.folder / _MANIFEST
            manifest.write_bytes(checksummed(fields))
            for path in (
                *unpublished.path.rglob("*"),
                unpublished.path,
                manifest,
                unpublished.folder,
            ):
                sync(path)

    def check_step(self, step: int) -> None:
        """Raises CheckpointError if `step` isn't later than that of every other checkpoint."""
        newest = self.newest()
        if newest is not None and newest.step >= step:
            raise CheckpointError(
                f"{self.folder}: has a checkpoint of step {newest.step}, and this one would be of "
                f"step {step}; go on from that one (restore), or give another folder"
            )

    def publish(self, written: Path, step: int) -> None:
        """Renames a finished checkpoint to its final name. Raises CheckpointError if its step isn't
        the latest. Removes older checkpoints that no process reads.
        """
        self.check_step(step)
        name = f"step-{step:012d}"
        with self._naming_folder_in_errors():
            rename(written, self.folder / name)
        for old in self._checkpoints()[: -self._keep]:
            remove_unless_read(old.folder)  # the next checkpoint tries again
        for unfinished in (self.folder / self._job).glob("*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    @contextlib.contextmanager
    def _naming_folder_in_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if self._has_left:
                raise ClosedError(f"{self.folder}: is closed; open it again") from error
            job = self.folder / self._job
            if self._job and self.folder.exists() and not job.exists():
                raise CheckpointError(
                    f"{self.folder}: another job has begun to keep its checkpoints here; this one "
                    "must end"
                ) from error
            raise self._write_error(error) from error
        except StorageError:
            raise
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> StorageError:
        return StorageError(f"checkpoints: {self.folder} can't be written to: {error}")

    def _checkpoints(self) -> list[TrainingCheckpoint]:
        found = numbered_entries(self.folder, _CHECKPOINT_NAME, may_be_missing=True)
        return [TrainingCheckpoint(number_in_name(path), path) for path in found]


def _check_links_survive_rename(folder: Path) -> None:
    """Raises InvalidArgumentError for entries that are neither files nor folders, and for links
    that would lead elsewhere once the folder is renamed, since it then lies less deep.
    """
    real = folder.resolve()
    for path in folder.rglob("*"):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InvalidArgumentError(
                f"{path.relative_to(folder)}: is neither a file nor a folder, and a checkpoint "
                "can't keep it"
            )
        if not path.is_symlink():
            continue
        link = path.readlink()
        target = path.parent / link
        is_inside = (target.parent.resolve() / target.name).is_relative_to(real)
        if link.is_absolute() and is_inside:
            raise InvalidArgumentError(
                f"{path.relative_to(folder)}: is a link into the checkpoint's own folder by its "
                f"absolute path ({link}), which changes; give a relative path"
            )
        if not link.is_absolute() and not is_inside:
            raise InvalidArgumentError(
                f"{path.relative_to(folder)}: is a link out of the checkpoint's folder by a "
                f"relative path ({link}), which changes; give an absolute path"
            )


def _sizes_and_digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Returns the size in bytes and the SHA-256 of each file, by its relative path."""
    described = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            described[str(path.relative_to(folder))] = path.stat().st_size, _digest(path)
    return described


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file. (Python 3.10 has no hashlib.file_digest.)"""
    digest, piece = hashlib.sha256(), memoryview(bytearray(_DIGEST_CHUNK_BYTES))
    with reading_from(path), path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()
