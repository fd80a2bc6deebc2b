"""Makes the same variable twice: with partitions here, and with each in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.cluster.rows.remote_shard import RemoteShard

MIB = 1 << 20

Export = dict[str, NDArray[Any]]


@contextlib.contextmanager
def local_and_sharded(
    shards: int, folder: Path | None = None, *, dim: int = 3, size: int = MIB, **options: Any
) -> Iterator[tuple[es.EmbeddingVariable, es.EmbeddingVariable]]:
    """Yields both variables. With a folder, rows beyond a shard's first 32 are in files there."""
    with contextlib.ExitStack() as stack:
        variables = []
        places: list[dict[str, Any]] = [{"partition_num": shards}, {"shards": shards}]
        for where in places:
            chosen = dict(options)
            if folder is not None:
                place = folder / "-".join(where)
                place.mkdir(exist_ok=True)
                chosen["storage_option"] = es.StorageOption(
                    es.StorageType.DRAM_SSDHASH, [None, place], [32 * 48, size]
                )
            variables.append(
                stack.enter_context(
                    es.get_embedding_variable(
                        "var",
                        dim,
                        initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
                        optimizer=es.optimizers.Adam(0.1),
                        ev_option=es.EmbeddingVariableOption(**chosen),
                        **where,
                    )
                )
            )
        yield variables[0], variables[1]


def train(var: es.EmbeddingVariable, seed: int, batches: int = 5) -> None:
    """Trains on skewed batches, the same for the same seed; looks each up first."""
    random = np.random.default_rng(seed)
    for _ in range(batches):
        ids = np.minimum(random.zipf(1.3, (40, 5)), 300).astype(np.int64) * 7919 - 40_000
        var.lookup(ids, train=True)
        var.apply_gradients(ids, random.standard_normal((40, 5, var.dim)).astype(np.float32))


def combine_workers_parts(
    parts: Iterable[tuple[NDArray[Any], NDArray[np.float32]]], workers: int
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Returns the ids and gradients of a step for one process that takes all workers' parts.

    parts: ids and gradients of each worker; their mean is taken.
    """
    all_ids, all_means = [], []
    for ids, grads in parts:
        dim = grads.shape[-1]
        unique, where = np.unique(ids, return_inverse=True)
        sums = np.zeros((unique.size, dim), np.float32)
        np.add.at(sums, where.ravel(), grads.reshape(-1, dim))  # in order
        # A key occurs as often as in the parts; its gradient comes with its first occurrence.
        again = np.repeat(unique, np.bincount(where.ravel()) - 1)
        all_ids += [unique, again]
        all_means += [sums * np.float32(1 / workers), np.zeros((again.size, dim), np.float32)]
    return np.concatenate(all_ids), np.concatenate(all_means)


def train_a_little(var: es.EmbeddingVariable) -> None:
    """Trains three rows of dim 3."""
    var.apply_gradients([1, 2, 3], np.ones((3, 3), np.float32))


def assert_same(got: Export, expected: Export) -> None:
    assert expected["keys"].size
    for column, values in expected.items():
        np.testing.assert_array_equal(got[column], values, err_msg=column)


def remote_shards(var: es.EmbeddingVariable) -> Sequence[RemoteShard]:
    shards = [shard for shard in var._shards if isinstance(shard, RemoteShard)]
    assert len(shards) == var.partition_num
    return shards
