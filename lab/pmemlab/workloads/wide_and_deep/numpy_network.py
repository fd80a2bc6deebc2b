"""Wide & Deep with its dense layers in NumPy, which an emulated machine imports in seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.workloads.batches import DENSE_COLUMNS, Batch
from pmemlab.workloads.run import LookupClock
from pmemlab.workloads.wide_and_deep.network import by_name, copy_state
from pmemlab.workloads.wide_and_deep.tables import (
    DEEP_LEARNING_RATE,
    INITIAL_ACCUMULATOR,
    EmbeddingTables,
    ModelOptions,
)

Floats = NDArray[np.float32]


class NumpyNetwork:
    """A `Network` in NumPy."""

    def __init__(self, tables: EmbeddingTables, options: ModelOptions) -> None:
        self.lookup_clock = LookupClock()
        self._tables = tables
        self._dim = options.embedding_dim
        random = np.random.default_rng(options.seed)
        self._parameters = [np.zeros((1, len(DENSE_COLUMNS)), np.float32), np.zeros(1, np.float32)]
        for rows, columns in pairwise(options.deep_widths):
            self._parameters += [
                _glorot(random, columns, rows),
                np.zeros(columns, np.float32),
            ]
        self._sums = [np.full_like(each, INITIAL_ACCUMULATOR) for each in self._parameters]

    @np.errstate(over="ignore", invalid="ignore")  # the loss shows it
    def train(self, batch: Batch) -> float:
        keys = np.ascontiguousarray(batch.keys.T)
        started = time.perf_counter()
        wide = _look_up(self._tables.wide, keys, train=True)
        deep = _look_up(self._tables.deep, keys, train=True)
        self.lookup_clock.seconds += time.perf_counter() - started
        self.lookup_clock.rows += 2 * keys.size
        inputs, logits = self._forward(batch.dense, wide, deep)
        # The samples' binary cross-entropies, and the gradient of their mean with respect to each
        # logit.
        losses = np.logaddexp(np.float32(0), logits) - batch.labels * logits
        by_logit = (_sigmoid(logits) - batch.labels) / np.float32(len(batch))
        by_deep_input = self._backward(batch.dense, inputs, by_logit[:, np.newaxis])
        for column, (wide_table, deep_table) in enumerate(
            zip(self._tables.wide, self._tables.deep, strict=True)
        ):
            first = len(DENSE_COLUMNS) + column * self._dim
            wide_table.apply_gradients(keys[column], by_logit[:, np.newaxis])
            deep_table.apply_gradients(
                keys[column], np.ascontiguousarray(by_deep_input[:, first : first + self._dim])
            )
        return float(losses.mean(dtype=np.float32))

    def predict(self, batch: Batch) -> Floats:
        keys = np.ascontiguousarray(batch.keys.T)
        wide = _look_up(self._tables.wide, keys, train=False)
        deep = _look_up(self._tables.deep, keys, train=False)
        return _sigmoid(self._forward(batch.dense, wide, deep)[1])

    def state(self) -> dict[str, Floats]:
        return by_name(self._parameters, self._sums)

    def load_state(self, state: Mapping[str, Floats]) -> None:
        copy_state(state, self.state())

    def _forward(
        self, dense: Floats, wide: list[Floats], deep: list[Floats]
    ) -> tuple[list[Floats], Floats]:
        """Return each deep layer's input, and the logits (n,)."""
        weight, bias, *layers = self._parameters
        wide_logits = np.concatenate(wide, axis=1).sum(axis=1) + (dense @ weight.T + bias)[:, 0]
        inputs = [np.concatenate([dense, *deep], axis=1)]
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            inputs.append(np.maximum(inputs[-1] @ weight.T + bias, np.float32(0)))
        weight, bias = layers[-2:]
        return inputs, wide_logits + (inputs[-1] @ weight.T + bias)[:, 0]

    def _backward(self, dense: Floats, inputs: list[Floats], by_logit: Floats) -> Floats:
        """Update the dense layers; return the gradient (n, width) of the deep part's input.

        inputs: each deep layer's input. by_logit: the loss's gradient by the logits, (n, 1).
        """
        gradients = [by_logit.T @ dense, by_logit.sum(axis=0)]
        by_layer: list[Floats] = []
        by_output = by_logit
        for number in reversed(range(len(inputs))):
            weight = self._parameters[2 + 2 * number]
            by_layer[:0] = [by_output.T @ inputs[number], by_output.sum(axis=0)]
            by_output = by_output @ weight
            if number > 0:
                by_output *= inputs[number] > 0  # the ReLU's gradient
        for parameter, total, gradient in zip(
            self._parameters, self._sums, gradients + by_layer, strict=True
        ):
            total += gradient * gradient
            parameter -= np.float32(DEEP_LEARNING_RATE) * gradient / np.sqrt(total)
        return by_output


def _look_up(
    tables: list[es.EmbeddingVariable], keys: NDArray[np.int64], *, train: bool
) -> list[Floats]:
    return [table.lookup(ids, train=train) for table, ids in zip(tables, keys, strict=True)]


def _sigmoid(logits: Floats) -> Floats:
    chances: Floats = np.exp(-np.logaddexp(np.float32(0), -logits))
    return chances


def _glorot(random: np.random.Generator, outputs: int, inputs: int) -> Floats:
    """Return uniform initial values (outputs, inputs), as Glorot and Bengio (2010) scale them."""
    bound = np.sqrt(6 / (inputs + outputs))
    return random.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
