"""Replicas of a model, a process each, for test_torch_replicas.py: replicas.py RENDEZVOUS_FILE.

Each replica writes to RANK.json, beside that file, its variable's rows, its dense parameters and
the errors that it got. The replicas are forked from a process that has only imported PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # PyTorch imports it with the first optimizer
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import embstore as es
from embstore.errors import EmbStoreError

KEYS = 12
DIM = 3
REPLICAS = 2


def batch(step: int, rank: int) -> torch.Tensor:
    """Returns ids. Their number depends on the rank; some come twice in a replica and in both."""
    ids = np.random.default_rng(100 * step + rank).integers(0, KEYS, 5 + rank)
    return torch.from_numpy(ids)


def make_model(seed: int = 1, rate: float = 0.1) -> Any:
    torch.manual_seed(0)
    var = es.get_embedding_variable(
        "table",
        DIM,
        initializer=es.initializers.RandomNormal(stddev=1.0, seed=seed),
        optimizer=es.optimizers.Adagrad(rate),
    )
    return torch.nn.Sequential(es.torch.Embedding(var), torch.nn.Linear(DIM, 1))


def loss_of(model: torch.nn.Module, ids: torch.Tensor) -> Any:
    loss: Any = (model(ids) - 1).pow(2).sum()
    return loss


def result(model: Any) -> dict[str, Any]:
    exported = model[0].variable.export()
    columns = {name: column.tolist() for name, column in exported.items()}
    return {**columns, "dense": model[1].weight.tolist()}


def train(rank: int | None, *, gathers: bool) -> dict[str, Any]:
    """Trains as one of the replicas; or, with rank None, as one process with the batches of all.

    gathers: steps of two micro-batches each, the first in no_sync(), with clipping.
    """
    model = make_model()
    wrapped: Any = model if rank is None else DistributedDataParallel(model)
    optimizers: list[Any] = [torch.optim.SGD(es.torch.dense_parameters(model), lr=0.05)]
    if gathers:
        optimizers.append(es.torch.Optimizer(model))
    for step in range(0, 6, 2 if gathers else 1):
        micro_batches = [step, step + 1] if gathers else [step]
        for number in micro_batches:
            if rank is None:
                parts = [loss_of(model, batch(number, r)) for r in range(REPLICAS)]
                (sum(parts[1:], parts[0]) / REPLICAS).backward()
                continue
            apart = wrapped.no_sync() if number != micro_batches[-1] else contextlib.nullcontext()
            with apart:
                loss_of(wrapped, batch(number, rank)).backward()
        if gathers:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return result(model)


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except EmbStoreError as error:
        return str(error)
    return ""


def backward_in_no_sync() -> None:
    wrapped = DistributedDataParallel(make_model())
    with wrapped.no_sync():
        loss_of(wrapped, batch(0, 0)).backward()


def forward_in_join() -> None:
    wrapped = DistributedDataParallel(make_model())
    with wrapped.join():
        loss_of(wrapped, batch(0, 0))


def use_bare_module(use: Callable[[Any], Any]) -> None:
    """Uses the bare module after its wrapper has compared the replicas."""
    model = make_model()
    loss_of(DistributedDataParallel(model), torch.tensor([1])).backward()
    use(model)


def evaluate(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model(torch.tensor([1]))
    model.eval()
    loss_of(model, torch.tensor([1])).backward()


class Recomputed(torch.nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.model = make_model()
        self.reentrant = reentrant

    def forward(self, ids: torch.Tensor) -> Any:
        def recomputed(_weight: torch.Tensor, ids: torch.Tensor) -> Any:
            return self.model(ids)

        return checkpoint(recomputed, self.model[1].weight, ids, use_reentrant=self.reentrant)


def train_with_recomputation(rank: int, *, reentrant: bool) -> dict[str, Any]:
    model = Recomputed(reentrant=reentrant)
    wrapped = DistributedDataParallel(model, static_graph=True)
    for step in range(2):
        loss_of(wrapped, batch(step, rank)).backward()
    return result(model.model)


def fsdp(model: torch.nn.Module, **options: Any) -> Any:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


def train_beside_sharded(shard: Callable[[Any, Any], Any], rank: int) -> dict[str, Any]:
    """Trains a table in DistributedDataParallel beside sharded parameters.

    shard: a function of the model and the module to leave out.
    """
    model = make_model()
    wrapped = torch.nn.Sequential(DistributedDataParallel(model[0]), model[1])
    sharded = shard(wrapped, wrapped[0])
    for step in range(2):
        loss_of(sharded, batch(step, rank)).backward()
    exported = model[0].variable.export()
    return {name: column.tolist() for name, column in exported.items()}


def replica(rank: int, rendezvous: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=REPLICAS
    )
    ids = torch.tensor([1])
    told = {
        "at once": [train(rank, gathers=False), train(None, gathers=False)],
        "gathered": [train(rank, gathers=True), train(None, gathers=True)],
        "recomputed": train_with_recomputation(rank, reentrant=False),
        "beside FSDP": train_beside_sharded(
            lambda model, out: fsdp(model, ignored_modules=[out]), rank
        ),
        "beside fully_shard": train_beside_sharded(
            lambda model, out: fully_shard(model, ignored_params=set(out.parameters())), rank
        ),
        "other rows": refusal(lambda: DistributedDataParallel(make_model(seed=rank))(ids)),
        "other rates": refusal(lambda: DistributedDataParallel(make_model(rate=1 + rank))(ids)),
        "no_sync": refusal(backward_in_no_sync),
        "join": refusal(forward_in_join),
        "past the wrapper": refusal(
            lambda: use_bare_module(lambda model: loss_of(model, ids).backward())
        ),
        "evaluation past the wrapper": refusal(lambda: use_bare_module(evaluate)),
        "reentrant": refusal(lambda: train_with_recomputation(rank, reentrant=True)),
        "fully_shard": refusal(lambda: fully_shard(make_model())(ids)),
        "FSDP": refusal(lambda: fsdp(make_model())(ids)),
        "FSDP with original parameters": refusal(
            lambda: fsdp(make_model(), use_orig_params=True)(ids)
        ),
    }
    model = make_model()
    wrapped = DistributedDataParallel(model)
    wrapped(ids)
    dist.barrier()
    dist.destroy_process_group()
    told["after the group's end"] = refusal(lambda: loss_of(model, ids).backward())
    rendezvous.with_name(f"{rank}.json").write_text(json.dumps(told))


def in_a_process(rank: int, rendezvous: Path) -> int:
    child = os.fork()
    if child == 0:
        # PyTorch's wrapper keeps the group's threads after the group has ended. A thread that drops
        # its last tensor while the interpreter exits aborts the process: so the child leaves by
        # os._exit.
        try:
            replica(rank, rendezvous)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def main() -> None:
    children = [in_a_process(rank, Path(sys.argv[1])) for rank in range(REPLICAS)]
    ended = [os.waitpid(child, 0) for child in children]
    sys.exit(any(status for _, status in ended))


if __name__ == "__main__":
    main()
