"""Wide & Deep with PyTorch's layers, over the engine's modules for PyTorch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adagrad import adagrad

import embstore.torch as es_torch
from pmemlab.workloads.batches import DENSE_COLUMNS, Batch
from pmemlab.workloads.reproducible_torch import make_reproducible
from pmemlab.workloads.run import LookupClock
from pmemlab.workloads.wide_and_deep.network import by_name, copy_state
from pmemlab.workloads.wide_and_deep.tables import (
    DEEP_LEARNING_RATE,
    INITIAL_ACCUMULATOR,
    EmbeddingTables,
    ModelOptions,
)


class TorchNetwork:
    """A `Network` in PyTorch. Its call of `make_reproducible` affects the whole process."""

    def __init__(self, tables: EmbeddingTables, options: ModelOptions) -> None:
        make_reproducible(options.seed)
        self._model = WideAndDeep(tables, options)
        self._loss_of = nn.BCEWithLogitsLoss()
        self._parameters: list[Tensor] = list(es_torch.dense_parameters(self._model))
        self._sums = [torch.full_like(p, INITIAL_ACCUMULATOR) for p in self._parameters]
        self._steps = [torch.zeros(()) for _ in self._parameters]  # only a decay would use them

    @property
    def lookup_clock(self) -> LookupClock:
        return self._model.lookup_clock

    def train(self, batch: Batch) -> float:
        self._model.train()
        logits = self._model(torch.from_numpy(batch.dense), torch.from_numpy(batch.keys))
        loss = self._loss_of(logits, torch.from_numpy(batch.labels))
        loss.backward()
        self._step()
        return float(loss.detach())

    def predict(self, batch: Batch) -> NDArray[np.float32]:
        self._model.eval()
        with torch.no_grad():
            logits = self._model(torch.from_numpy(batch.dense), torch.from_numpy(batch.keys))
            chances: NDArray[np.float32] = torch.sigmoid(logits).numpy()
        return chances

    def state(self) -> dict[str, NDArray[np.float32]]:
        return by_name(
            [parameter.detach().numpy() for parameter in self._parameters],
            [total.numpy() for total in self._sums],
        )

    def load_state(self, state: Mapping[str, NDArray[np.float32]]) -> None:
        copy_state(state, self.state())

    @torch.no_grad()
    def _step(self) -> None:
        """Apply the gradients of the last backward pass, and clear them.

        It uses the functional form of PyTorch's Adagrad, since the optimizer class imports
        PyTorch's compiler on first use.
        """
        adagrad(
            self._parameters,
            [parameter.grad for parameter in self._parameters if parameter.grad is not None],
            self._sums,
            self._steps,
            foreach=False,
            lr=DEEP_LEARNING_RATE,
            weight_decay=0.0,
            lr_decay=0.0,
            eps=0.0,
            maximize=False,
        )
        for parameter in self._parameters:
            parameter.grad = None


class WideAndDeep(nn.Module):
    """A module that maps n rows to n logits. To repeat a run, call `torch.manual_seed` before."""

    def __init__(self, tables: EmbeddingTables, options: ModelOptions) -> None:
        super().__init__()
        self.lookup_clock = LookupClock()
        self._wide_embeddings = nn.ModuleList(es_torch.Embedding(var) for var in tables.wide)
        self._deep_embeddings = nn.ModuleList(es_torch.Embedding(var) for var in tables.deep)
        self._wide_dense = nn.Linear(len(DENSE_COLUMNS), 1)
        nn.init.zeros_(self._wide_dense.weight)
        nn.init.zeros_(self._wide_dense.bias)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(options.deep_widths):
            layers += [_glorot_linear(inputs, outputs), nn.ReLU()]
        self._deep_layers = nn.Sequential(*layers[:-1])  # no ReLU after the logits

    def forward(self, dense: Tensor, keys: Tensor) -> Tensor:
        """Return logits (n,) for dense float32 (n, 13) and keys int64 (n, 26)."""
        columns = keys.t().contiguous()
        started = time.perf_counter()
        wide = _look_up(self._wide_embeddings, columns)
        deep = _look_up(self._deep_embeddings, columns)
        if self.training:
            self.lookup_clock.seconds += time.perf_counter() - started
            self.lookup_clock.rows += 2 * keys.numel()
        wide_logits: Tensor = torch.cat(wide, dim=1).sum(dim=1) + self._wide_dense(dense).squeeze(1)
        deep_logits: Tensor = self._deep_layers(torch.cat([dense, *deep], dim=1)).squeeze(1)
        return wide_logits + deep_logits


def _look_up(embeddings: nn.ModuleList, columns: Tensor) -> list[Tensor]:
    return [embed(column) for embed, column in zip(embeddings, columns, strict=True)]


def _glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
