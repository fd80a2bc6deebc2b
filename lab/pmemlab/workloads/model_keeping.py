"""Checkpoints of a whole model: its rows in durable pools, its dense part in a file.

The engine lists a checkpoint once all of it is durable. So the file of that step is made durable
before the checkpoint is listed, and the files of other steps are deleted after it: a power cut at
any moment leaves the file that belongs to the listed checkpoint.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.errors import EmbStoreError, InvalidArgumentError
from embstore.options import TIER_KINDS, TierKind
from pmemlab.whole_file import sync_folder
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.keeping import check_steps_left, report_saved

__all__ = [
    "DensePart",
    "ModelCheckpoints",
    "model_checkpoint_refusal",
    "read_back",
    "write_durably",
]

_DENSE_FILE: Final = re.compile(r"dense-\d+\.npz(\.unfinished)?")


class DensePart(Protocol):
    """The part of a model that lies in no table: parameters, and their optimizer's state."""

    def state(self) -> dict[str, NDArray[np.float32]]: ...

    def load_state(self, state: Mapping[str, NDArray[np.float32]]) -> None:
        """Replaces the state. Raises ValueError for the state of another model."""


@dataclass(frozen=True)
class ModelCheckpoints:
    """Checkpoints in one folder, which keeps the newest.

    folder: on a DAX mount; created if its parent exists. every: steps between two checkpoints.
    """

    folder: Path
    every: int

    def durable(self, storage: es.StorageOption) -> es.StorageOption:
        """Return the same storage with its pools in `folder`; tiers below the pools stay where they
        were.

        Raises InvalidArgumentError for a storage type without durable pools below DRAM.
        """
        if refusal := model_checkpoint_refusal(storage.storage_type):
            raise InvalidArgumentError(f"--kept-in: {refusal}")
        below = [tier.path for tier in storage.tiers()[2:]]
        paths = [None, self._pools, *below]
        try:
            return replace(storage, storage_path=paths, durability="checkpoint")
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"--kept-in: {error}") from None

    def make_folders(self) -> None:
        """Makes the missing folders. Raises DataError.

        REQUIRES: the variables are not made yet.
        """
        for folder in (self.folder, self._pools):
            try:
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)
            except OSError as error:
                raise DataError(f"{folder}: can't be made: {error.strerror}") from error

    def restore(
        self, variables: Iterable[es.EmbeddingVariable], dense: DensePart, steps: int
    ) -> int:
        """Restore the newest checkpoint, if there is one; return the number of steps done by then.

        steps: the number of steps that the whole run shall have. Raises EmbStoreError or DataError
        for a checkpoint that can't be read or used: a run must not silently start over.
        """
        tables = list(variables)
        if not es.persisted(self._checkpoints):
            for variable in tables:
                # Pools may hold rows of a first checkpoint that was cut short before it was listed.
                with suppress(InvalidArgumentError):  # the pool is empty
                    es.discard_persisted([variable])
            return 0
        done = es.restore_persisted(tables, self._checkpoints)
        check_steps_left(self.folder, done, steps)
        path = self._dense_path(done)
        arrays = read_back(path)
        try:
            dense.load_state(arrays)
        except ValueError as error:
            raise DataError(f"{path}: can't be read back: {error}") from error
        return done

    def save_if_due(
        self, variables: Iterable[es.EmbeddingVariable], dense: DensePart, steps: int
    ) -> bool:
        """Make a checkpoint of the state after `steps` steps if one is due; return whether one was
        due.

        Raises EmbStoreError or DataError if it can't be written.
        """
        if steps % self.every:
            return False
        path = self._dense_path(steps)
        try:
            write_durably(path, dense.state())
            es.persist(list(variables), self._checkpoints, global_step=steps)
            for other in self.folder.iterdir():
                if _DENSE_FILE.fullmatch(other.name) and other != path:
                    other.unlink()
        except OSError as error:
            raise DataError(
                f"{error.filename or path}: can't be written: {error.strerror}"
            ) from error
        report_saved(steps)
        return True

    @property
    def _pools(self) -> Path:
        return self.folder / "pools"

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def _dense_path(self, steps: int) -> Path:
        return self.folder / f"dense-{steps:08}.npz"


def model_checkpoint_refusal(storage_type: es.StorageType) -> str | None:
    """Returns why a model's checkpoints can't be kept on this storage type; None if they can."""
    if TierKind.HBM in TIER_KINDS[storage_type]:
        return f"{storage_type.name} has a tier of HBM; give DRAM_PMEM or DRAM_PMEM_SSDHASH"
    try:
        es.StorageOption(storage_type, Path("/"), durability="checkpoint")
    except EmbStoreError as error:
        return str(error)
    return None


def read_back(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the arrays that `write_durably` wrote. Raises DataError, which names the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: can't be read back: {error}") from error


def write_durably(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes a file that exists whole or not at all, whenever the power is cut. Raises OSError."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_folder(path.parent)
