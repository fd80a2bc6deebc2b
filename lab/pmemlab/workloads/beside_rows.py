"""Batches where a table's rows are: in a GPU's memory, if the table takes them there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es

__all__ = ["beside_rows", "on_host"]


def beside_rows(
    variable: es.EmbeddingVariable, array: NDArray[Any]
) -> NDArray[Any] | es.DeviceArray:
    """Ids or gradients, as the variable takes them without a copy of its own."""
    return array if variable.gpu is None else es.DeviceArray(array, device=variable.gpu)


def on_host(rows: NDArray[np.float32] | es.DeviceArray) -> NDArray[np.float32]:
    return rows.numpy() if isinstance(rows, es.DeviceArray) else rows
