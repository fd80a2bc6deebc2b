"""The engine's checkpoints, of a table with as many bytes as the other formats' tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch

import embstore as es
from benchmarks.checkpoint_io.checkpoint import Checkpoint
from benchmarks.checkpoint_io.errors import DamagedCheckpointError, NoCheckpointError
from benchmarks.checkpoint_io.formats.format import Format
from benchmarks.checkpoint_io.page_cache import FilePart
from benchmarks.checkpoint_io.phases import PhaseClock
from embstore.errors import CheckpointError

__all__ = ["EmbstoreTable"]

_DIM: Final = 64
_ROWS_AT_ONCE: Final = 1 << 16
_ROWS, _STEP = "rows", "step"


class EmbstoreTable(Format):
    """`es.save` and `es.restore` of a table in DRAM whose rows are the tensors' floats.

    The files also have each row's key, frequency and version. The engine serialises, writes and
    syncs in one call, so these phases aren't timed separately.
    """

    file_name = "checkpoint.embstore"
    notices_flipped_bits = True
    saves_content_as_given = False  # it saves its table, whose updates wait
    separates_sync = False
    reads_per_byte = 2  # everything is verified before the first row changes

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._saved: es.EmbeddingVariable | None = None

    def content_of(self, checkpoint: Checkpoint) -> Checkpoint:
        floats = [
            tensor.detach().reshape(-1).numpy()
            for tensor in checkpoint.tensors.values()
            if tensor.dtype == torch.float32
        ]
        count = -(-checkpoint.tensor_bytes // (4 * _DIM))
        rows = np.zeros(count * _DIM, np.float32)  # zeros for other dtypes, and as padding
        flat = np.concatenate([np.empty(0, np.float32), *floats])
        rows[: len(flat)] = flat
        self.close()
        self._saved = _variable()
        for start in range(0, count, _ROWS_AT_ONCE):
            part = rows.reshape(-1, _DIM)[start : start + _ROWS_AT_ONCE]
            self._saved.put(np.arange(start, start + len(part)), part)
        return _content(self._saved, int(checkpoint.scalars.get(_STEP, 0)))

    def save(self, content: Checkpoint, clock: PhaseClock) -> None:
        if self._saved is None:
            raise ValueError("content_of() makes the table that is saved")
        with clock("write"):
            es.save(self._path, [self._saved], global_step=content.scalars[_STEP])

    def load(self, clock: PhaseClock) -> Checkpoint:
        if not self._path.exists():
            raise NoCheckpointError(self._path)
        with _variable() as variable:
            try:
                with clock("read"):
                    step = es.restore(self._path, [variable])
            except CheckpointError as error:
                raise DamagedCheckpointError(self._path, str(error)) from error
            return _content(variable, step)

    def parts(self) -> list[FilePart]:
        files = sorted(path for path in self._path.rglob("*") if path.is_file())
        return [FilePart.whole(file) for file in files]

    def close(self) -> None:
        if self._saved is not None:
            self._saved.close()
            self._saved = None


def _variable() -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "checkpoint_io",
        embedding_dim=_DIM,
        initializer=es.initializers.Zeros(),
    )


def _content(variable: es.EmbeddingVariable, step: int) -> Checkpoint:
    exported = variable.export()
    tensors = {name: torch.from_numpy(exported[name]) for name in ("keys", "values")}
    return Checkpoint({_ROWS: tensors["values"], "keys": tensors["keys"]}, {_STEP: step})
