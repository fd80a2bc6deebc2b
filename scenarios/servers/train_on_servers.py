"""Trains DeepFM with two workers and tables on servers.

    python train_on_servers.py FOLDER

FOLDER gets each table's rows, the dense weights and each worker's losses; then report.json, which
names the workers' processes. The shards stay until FOLDER/seen exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import deepfm
import keras
import numpy as np
import torch
import torch.distributed

import embstore as es

_SEEN_WITHIN_S = 180.0


def train(worker: es.cluster.Worker, folder: Path) -> None:
    _connect(worker, folder)
    ids = keras.Input((deepfm.FIELDS,), dtype="int64")
    tables = {
        name: es.keras.Embedding(
            None,
            dim,
            deepfm.initializer(name),
            name=name,
            optimizer=deepfm.optimizer(),
            ev_option=deepfm.storage(),
            shards=2,
        )
        for name, dim in deepfm.TABLES.items()
    }
    model = keras.Model(ids, deepfm.interactions()([table(ids) for table in tables.values()]))
    optimizer = deepfm.dense_optimizer()
    optimizer.build(model.trainable_variables)
    losses = []
    for step in range(deepfm.STEPS):
        batch, labels = deepfm.samples(worker.rank, step)
        model.zero_grad()
        loss = deepfm.loss_of(model(torch.from_numpy(batch), training=True), labels)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients = [variable.value.grad for variable in model.trainable_variables]
        _all_reduce([weight.value.grad for weight in _dense_weights(model)])
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_variables)
    variables = [table.variable for table in tables.values()]
    for variable in variables:
        variable.drain()
    np.save(folder / f"losses{worker.rank}.npy", losses)
    processes = [0] * deepfm.WORKERS
    torch.distributed.all_gather_object(processes, os.getpid())
    if worker.rank == 0:
        _write_report(folder, model, variables, processes)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    for variable in variables:
        variable.close()


def _dense_weights(model: Any) -> list[Any]:
    """Returns the weights that the optimizer trains; the tables' servers train the rows."""
    return [weight for weight in model.trainable_variables if not weight.overwrite_with_gradient]


def _all_reduce(gradients: list[Any]) -> None:
    """Replaces gradients by their mean over the workers, summed in the workers' order."""
    own_gradients = torch.cat([gradient.reshape(-1) for gradient in gradients])
    everyones = [torch.empty_like(own_gradients) for _ in range(deepfm.WORKERS)]
    torch.distributed.all_gather(everyones, own_gradients)
    mean = torch.stack(everyones).sum(dim=0) / deepfm.WORKERS
    for gradient, part in zip(
        gradients, mean.split([gradient.numel() for gradient in gradients]), strict=True
    ):
        gradient.copy_(part.reshape(gradient.shape))


def _connect(worker: es.cluster.Worker, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/workers",
        rank=worker.rank,
        world_size=worker.workers,
    )


def _write_report(
    folder: Path, model: Any, variables: list[es.EmbeddingVariable], processes: list[int]
) -> None:
    for variable in variables:
        np.savez(folder / f"{variable.name}.npz", **variable.export())
    np.savez(folder / "dense.npz", *[weight.numpy() for weight in _dense_weights(model)])
    (folder / "written").write_text(json.dumps({"workers": processes}))
    (folder / "written").rename(folder / "report.json")
    deadline = time.monotonic() + _SEEN_WITHIN_S
    while not (folder / "seen").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody has looked at the shards")
        time.sleep(0.05)


if __name__ == "__main__":
    es.cluster.run(
        train,
        Path(sys.argv[1]),
        workers=deepfm.WORKERS,
        cpus_per_worker=0.5,  # the servers with PMem offer none
    )
