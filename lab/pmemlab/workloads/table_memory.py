"""Moves batches to the memory that a table takes them in: a GPU's memory, or the host's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es

__all__ = ["on_host", "on_table_memory"]


def on_table_memory(
    variable: es.EmbeddingVariable, array: NDArray[Any]
) -> NDArray[Any] | es.DeviceArray:
    """Returns ids or gradients in the memory where the variable needs no copy of its own."""
    return array if variable.gpu is None else es.DeviceArray(array, device=variable.gpu)


def on_host(rows: NDArray[np.float32] | es.DeviceArray) -> NDArray[np.float32]:
    return rows.numpy() if isinstance(rows, es.DeviceArray) else rows
