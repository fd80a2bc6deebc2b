"""Trains DeepFM in one process, and compares it with workers that trained on servers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any

import deepfm
import numpy as np
import torch

import embstore as es


def assert_trained_as_here(folder: Path) -> None:
    """Compares the files of train_on_servers.py with training here: to the bit."""
    here = _trained_here()
    for name in deepfm.TABLES:
        _assert_same(dict(np.load(folder / f"{name}.npz")), here.rows[name])
    with np.load(folder / "dense.npz") as dense:
        for array, wanted in zip(dense.values(), here.dense, strict=True):
            np.testing.assert_array_equal(array, wanted)
    for rank in range(deepfm.WORKERS):
        losses = np.load(folder / f"losses{rank}.npy")
        np.testing.assert_array_equal(losses, here.losses[rank])
        assert losses[-5:].mean() < losses[:5].mean(), "it learns"


@dataclasses.dataclass(frozen=True)
class _TrainedHere:
    rows: dict[str, dict[str, Any]]
    dense: list[Any]
    losses: list[list[float]]  # by worker


@functools.cache
def _trained_here() -> _TrainedHere:
    """Computes both workers' parts of each step, one after the other, in one process with tables of
    its own, and applies their gradients to each table as one batch.
    """
    model = deepfm.interactions()
    optimizer = deepfm.dense_optimizer()
    optimizer.build(model.trainable_variables)
    losses: list[list[float]] = [[] for _ in range(deepfm.WORKERS)]
    with contextlib.ExitStack() as stack:
        tables = {
            name: stack.enter_context(
                es.get_embedding_variable(
                    name,
                    dim,
                    initializer=deepfm.initializer(name),
                    optimizer=deepfm.optimizer(),
                )
            )
            for name, dim in deepfm.TABLES.items()
        }
        for step in range(deepfm.STEPS):
            parts: dict[str, list[Any]] = {name: [] for name in tables}
            dense = []
            for rank in range(deepfm.WORKERS):
                ids, labels = deepfm.samples(rank, step)
                model.zero_grad()
                found = {
                    name: torch.from_numpy(table.lookup(ids, train=True)).requires_grad_()
                    for name, table in tables.items()
                }
                loss = deepfm.loss_of(model(list(found.values()), training=True), labels)
                loss.backward()
                losses[rank].append(float(loss.detach()))
                for name, rows in found.items():
                    parts[name].append(_as_worker_sends(ids, rows.grad.numpy()))
                dense.append([weight.value.grad.clone() for weight in model.trainable_variables])
            for name, table in tables.items():
                all_ids, all_means = zip(*parts[name], strict=True)
                table.apply_gradients(np.concatenate(all_ids), np.concatenate(all_means))
            means = [
                torch.stack(each).sum(dim=0) / deepfm.WORKERS for each in zip(*dense, strict=True)
            ]
            with torch.no_grad():
                optimizer.apply(means, model.trainable_variables)
        return _TrainedHere(
            {name: table.export() for name, table in tables.items()},
            [weight.numpy() for weight in model.trainable_variables],
            losses,
        )


def _as_worker_sends(
    ids: np.ndarray[Any, Any], grads: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns ids and gradients as a worker sends them: each key's gradients are summed in order
    and divided by the number of workers. A key occurs as often as before, its sum comes first.
    """
    unique, where = np.unique(ids, return_inverse=True)
    sums = np.zeros((unique.size, grads.shape[-1]), np.float32)
    np.add.at(sums, where.reshape(-1), grads.reshape(-1, grads.shape[-1]))
    again = np.repeat(unique, np.bincount(where.reshape(-1)) - 1)
    nothing = np.zeros((again.size, grads.shape[-1]), np.float32)
    return (
        np.concatenate([unique, again]),
        np.concatenate([sums * np.float32(1 / deepfm.WORKERS), nothing]),
    )


def _assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert len(expected["keys"]) > 10_000
    assert got.keys() == expected.keys()
    for column, values in expected.items():
        np.testing.assert_array_equal(got[column], values, err_msg=column)
