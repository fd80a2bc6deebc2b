"""Rows in safetensors files: a tensor for each column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError, MissingLibraryError, StorageError
from embstore.row_files.columns import Columns

__all__ = ["SafetensorsRows", "write"]


def _library() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise MissingLibraryError(
            "safetensors files need safetensors, which isn't installed; get it with: "
            "pip install 'embstore[files]'"
        ) from error
    return safetensors


def write(path: Path, columns: Columns, notes: Mapping[str, str]) -> None:
    safetensors = _library()
    contiguous = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    try:
        safetensors.numpy.save_file(contiguous, path, metadata=dict(notes))
    except safetensors.SafetensorError as error:
        raise StorageError(f"{path}: can't be written: {error}") from error


class SafetensorsRows:
    def __init__(self, path: Path) -> None:
        self._path = path
        safetensors = _library()
        try:
            self._file = safetensors.safe_open(path, framework="numpy")
        except (safetensors.SafetensorError, OSError) as error:
            raise StorageError(f"{path}: can't be read as safetensors: {error}") from error
        self._shapes: dict[str, list[int]] = {
            name: self._file.get_slice(name).get_shape() for name in list(self._file.keys())
        }
        self.columns: dict[str, tuple[int, ...]] = {
            name: tuple(shape[1:]) for name, shape in self._shapes.items()
        }

    def chunks(self, names: tuple[str, ...], rows: int) -> Iterator[Columns]:
        shapes = {name: self._shapes[name] for name in names}
        counts = {shape[0] if shape else 0 for shape in shapes.values()}
        if len(counts) > 1:
            raise InvalidArgumentError(f"{self._path}: its columns have several lengths: {shapes}")
        slices = {name: self._file.get_slice(name) for name in names}
        count = counts.pop()
        for first in range(0, count, rows):
            end = min(first + rows, count)
            yield {name: self._part(name, column, first, end) for name, column in slices.items()}

    def _part(self, name: str, column: Any, first: int, end: int) -> NDArray[Any]:
        try:
            part: NDArray[Any] = column[first:end]
        except (TypeError, AttributeError) as error:  # the library's errors for such dtypes
            raise InvalidArgumentError(
                f"{self._path}: {name} is {column.get_dtype()}, which NumPy hasn't; write it as "
                "float32"
            ) from error
        return part

    def close(self) -> None:
        """Closes the file; it stays mapped as long as arrays of it are used."""
        del self._file
