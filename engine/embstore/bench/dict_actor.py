"""The simplest parameter server: a Ray actor with rows in a dict, and Adagrad in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["DictActor"]


class DictActor:
    """A parameter server. Each id occurs once in a batch."""

    def __init__(self, rows: int, dim: int, learning_rate: float) -> None:
        self._rate = learning_rate
        self._rows = {key: np.zeros(dim, np.float32) for key in range(rows)}
        self._squares = {key: np.full(dim, 0.1, np.float32) for key in range(rows)}

    def pull(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.stack([self._rows[key] for key in keys.tolist()])

    def push(self, keys: NDArray[np.int64], grads: NDArray[np.float32]) -> None:
        for key, grad in zip(keys.tolist(), grads, strict=True):
            squares = self._squares[key]
            squares += grad * grad
            self._rows[key] -= self._rate * grad / np.sqrt(squares)
