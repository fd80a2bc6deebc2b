"""A training step of DeepFM, which shows the cost of remote tables beside a model's own work."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.variable import EmbeddingVariable

__all__ = ["COLUMNS", "DeepFM"]

COLUMNS = 26  # categorical columns of the Criteo data set
_HIDDEN = (400, 400, 400)


class DeepFM:
    """The model of Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR
    Prediction", IJCAI 2017, with Adagrad for the dense part and the rows.

    The first value of a row is its linear weight, the rest is its vector.
    """

    def __init__(self, variable: EmbeddingVariable) -> None:
        torch.manual_seed(1)
        self._variable = variable
        widths = (COLUMNS * (variable.dim - 1), *_HIDDEN)
        layers: list[torch.nn.Module] = []
        for inputs, outputs in zip(widths, _HIDDEN, strict=False):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        self._deep = torch.nn.Sequential(*layers, torch.nn.Linear(_HIDDEN[-1], 1))
        self._optimizer = torch.optim.Adagrad(self._deep.parameters(), lr=0.01)

    def train(self, batches: Iterable[NDArray[np.int64]], *, prefetches: bool) -> None:
        """Trains one step with each batch of ids, int64 (samples * COLUMNS,). prefetches: each
        batch's rows are requested before the step of the batch before it.
        """
        before: NDArray[np.int64] | None = None
        for ids in batches:
            if before is not None:
                if prefetches:
                    self._variable.prefetch(ids)
                self._step(before)
            elif prefetches:
                self._variable.prefetch(ids)
            before = ids
        if before is not None:
            self._step(before)

    def _step(self, ids: NDArray[np.int64]) -> None:
        found = torch.from_numpy(self._variable.lookup(ids, train=True)).requires_grad_()
        rows = found.reshape(-1, COLUMNS, self._variable.dim)
        linear, vectors = rows[:, :, 0], rows[:, :, 1:]
        # Equation 2 of the paper: the sum of the products of all pairs is half of the square of the
        # sum, less the sum of the squares.
        pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        logits = linear.sum(1) + pairs + self._deep(vectors.flatten(1))[:, 0]
        clicks = (torch.from_numpy(ids.reshape(-1, COLUMNS)[:, 0]) % 2).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert found.grad is not None
        self._variable.apply_gradients(ids, found.grad.numpy())
        self._optimizer.step()
