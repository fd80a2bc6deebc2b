"""DeepFM (Guo et al. 2017, https://arxiv.org/abs/1703.04247) in Keras, small, and its samples."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from numpy.typing import NDArray

import embstore as es

FIELDS, FACTORS = 6, 8
WORKERS = 2
BATCH = 512  # samples of a worker per step
STEPS = 40
TABLES = {"linear": 1, "factors": FACTORS}  # dim

_KEYS_A_FIELD = 40_000
_PMEM_BYTES = 16 << 20  # per shard

Rows = dict[str, NDArray[Any]]


def samples(rank: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns ids (BATCH, FIELDS), which differ by field, and labels (BATCH, 1)."""
    random = np.random.default_rng([rank, step])
    of_field = (_KEYS_A_FIELD * random.random((BATCH, FIELDS)) ** 2).astype(np.int64)
    labels = (of_field.sum(axis=1, keepdims=True) % 3 == 0).astype(np.float32)
    return of_field * FIELDS + np.arange(FIELDS), labels


def optimizer() -> es.optimizers.Optimizer:
    """Returns the optimizer of the embedding rows."""
    return es.optimizers.Adagrad(0.05, initial_accumulator_value=0.1)


def initializer(table: str) -> es.initializers.Initializer:
    return es.initializers.RandomUniform(-0.05, 0.05, seed=len(table))


def storage() -> es.EmbeddingVariableOption:
    """Returns the option for rows in the servers' PMem, with DRAM as the first tier."""
    option = es.StorageOption(
        es.StorageType.DRAM_PMEM, [None, es.cluster.NODE_PMEM], [None, _PMEM_BYTES]
    )
    return es.EmbeddingVariableOption(storage_option=option)


def interactions() -> Any:
    """Returns a model: [linear rows (n, FIELDS, 1), factors (n, FIELDS, FACTORS)] -> (n, 1)."""
    keras.utils.set_random_seed(5)
    torch.set_num_threads(1)  # makes sums in one order
    linear = keras.Input((FIELDS, 1))
    factors = keras.Input((FIELDS, FACTORS))
    ops = keras.ops
    pairs = 0.5 * ops.sum(
        ops.square(ops.sum(factors, axis=1)) - ops.sum(ops.square(factors), axis=1),
        axis=1,
        keepdims=True,
    )
    deep = keras.layers.Flatten()(factors)
    for units in (32, 16):
        deep = keras.layers.Dense(units, activation="relu")(deep)
    logit = ops.sum(linear, axis=1) + pairs + keras.layers.Dense(1)(deep)
    return keras.Model([linear, factors], ops.sigmoid(logit))


def loss_of(probabilities: Any, labels: NDArray[np.float32]) -> Any:
    return torch.nn.functional.binary_cross_entropy(probabilities, torch.from_numpy(labels))


def dense_optimizer() -> Any:
    return keras.optimizers.Adam(0.01)
