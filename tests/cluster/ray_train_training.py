"""The training that Ray Train's workers do in a test, and the result that it must have."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sharded import combine_workers_parts

import embstore as es

DIM, STEPS, EVERY, BATCH = 4, 24, 5, 30
DIES_IN_STEP = 13

Export = dict[str, NDArray[Any]]


def variable(**where: Any) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "items",
        DIM,
        initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=7),
        optimizer=es.optimizers.Adam(0.05),
        **where,
    )


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng([rank, step])
    ids = np.minimum(random.zipf(1.3, (BATCH, 2)), 90).astype(np.int64) * 7919 - 40_000
    return torch.from_numpy(ids), torch.from_numpy((ids.sum(1) % 2).astype(np.float32))


def dense_part() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * DIM, 1))


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels)


def train(config: dict[str, Any]) -> None:
    """The function that Ray Train calls in each worker, and in all of them again after a death."""
    import ray.train
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    folder: Path = config["folder"]
    (folder / f"worker-{os.getpid()}").touch()
    worker = es.cluster.join(config["ticket"], rank)
    with variable(shards=2) as items:
        model = torch.nn.Sequential(es.torch.Embedding(items), dense_part())
        found = worker.restore([items])
        if found is not None:
            model[1].load_state_dict(torch.load(found.path / "dense.pt"))
            (folder / f"restored-{found.step}-{rank}").touch()
        replica = DistributedDataParallel(model)
        optimizers = [
            torch.optim.SGD(es.torch.dense_parameters(model), 0.1),
            es.torch.Optimizer(model),
        ]
        for step in range(found.step if found is not None else 0, STEPS):
            if rank == 1 and step == DIES_IN_STEP and found is None:
                os.kill(os.getpid(), signal.SIGKILL)
            ids, labels = batch(rank, step)
            loss_of(replica(ids), labels).backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if (step + 1) % EVERY == 0:
                with worker.checkpoint(step + 1, [items]) as place:
                    if place is not None:
                        torch.save(model[1].state_dict(), place / "dense.pt")
        worker.meet()
        if rank == 0:
            np.savez(folder / "rows.npz", allow_pickle=False, **items.export())
            torch.save(model[1].state_dict(), folder / "dense.pt")
        worker.meet()
    worker.leave()


def trained_here(workers: int) -> tuple[Export, dict[str, torch.Tensor]]:
    """Returns the rows and weights that one process gets from all parts, without failures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dense = dense_part()
    optimizer = torch.optim.SGD(dense.parameters(), 0.1)
    with variable() as items:
        for step in range(STEPS):
            parts = []
            for rank in range(workers):
                ids, labels = batch(rank, step)
                rows = torch.from_numpy(items.lookup(ids.numpy(), train=True)).requires_grad_()
                loss = loss_of(dense(rows), labels) / workers
                loss.backward()  # type: ignore[no-untyped-call]
                assert rows.grad is not None
                parts.append((ids.numpy(), rows.grad.numpy()))
            # The losses are divided by the number of workers already.
            items.apply_gradients(*combine_workers_parts(parts, workers=1), global_step=step)
            optimizer.step()
            optimizer.zero_grad()
        torch.set_num_threads(threads)
        return items.export(), dense.state_dict()
