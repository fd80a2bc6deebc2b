"""Replicas of a model in several processes, under `DistributedDataParallel`.

Every process has a variable of its own, made alike: the same name, dim, initializer, optimizer and
rows (say, restored from one checkpoint). The first forward checks as much as it can of that. Each
then trains with the gradients of all, as dense parameters do: their mean, gathered when a backward
pass ends. So rows stay equal, bit for bit, and so do frequencies, which count all replicas' ids.

A backward pass through look-ups outside of the wrapper's forward would train one replica alone; it
is refused.

Backward passes in `no_sync()` gather in the process, with an `embstore.torch.Optimizer` alone.
A variable must take part in a backward pass in all processes or in none; `join()`, for batches
that run out in some of them, isn't supported.

The workers of an `embstore.cluster.Job` share a variable instead: each hands on its own gradients,
of which the shards take the mean.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.torch.rows import GradientPart

if TYPE_CHECKING:
    from torch import Tensor

    from embstore.variable import EmbeddingVariable

__all__ = ["Replicas", "check_not_apart", "current"]


@dataclass(frozen=True)
class Replicas:
    """Those that the running forward belongs to."""

    group: dist.ProcessGroup
    synchronizes: bool  # False in no_sync()

    def mean(self, part: GradientPart) -> GradientPart:
        """All replicas' parts, in the order of their ranks, over the number of replicas."""
        replicas = dist.get_world_size(self.group)
        device = self._device()
        counts = self._gathered(torch.tensor([len(part.ids)], device=device))
        lengths = [int(count) for count in counts]
        most = max(lengths)
        ids = self._gathered(_padded(part.ids.to(device), most))
        grads = self._gathered(_padded(part.grads.to(device), most))
        pairs = list(zip(ids, grads, lengths, strict=True))
        return GradientPart(
            part.number,
            torch.cat([ids[:length] for ids, _, length in pairs]).to(part.ids.device),
            torch.cat([grads[:length] for _, grads, length in pairs]).to(part.grads.device)
            / replicas,
        )

    def _device(self) -> torch.device:
        nccl = dist.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(everyones, tensor.contiguous(), group=self.group)
        return everyones


def current(variable: EmbeddingVariable) -> Replicas | None:
    """None outside of a forward of DistributedDataParallel, where there is one process, and where
    the processes share the variable: its shards put their gradients together.
    """
    if not dist.is_available():
        return None
    wrapper = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    if wrapper is None or dist.get_world_size(wrapper.process_group) == 1:
        return None
    if wrapper._join_config.enable:
        raise UnsupportedError(
            f"{variable.name}: its replicas can't be trained in join(), since they wait for each "
            "other in every backward pass; give all processes as many batches"
        )
    if variable.internals.is_shared:
        return None
    _check_equal(variable, wrapper.process_group)
    return Replicas(wrapper.process_group, wrapper.require_backward_grad_sync)


def check_not_apart(variable: EmbeddingVariable) -> None:
    """Raises UnsupportedError where a backward pass would train one of several replicas alone: none
    of the look-ups that it goes through was in a forward of DistributedDataParallel, but others
    were, whose process group still lives.

    A look-up alone can't tell: `torch.utils.checkpoint(use_reentrant=False)` repeats it outside of
    the wrapper, and lets the gradients flow back through the first one.
    """
    with _compared_lock:
        compared_in = _compared.get(variable)
    group = None if compared_in is None else compared_in()
    if group is not None and _lives(group):
        raise UnsupportedError(
            f"{variable.name}: its replicas would be trained apart, since it was looked up outside "
            "of DistributedDataParallel's forward; call the DistributedDataParallel wrapper and "
            "not the module in it, and checkpoint activations with use_reentrant=False"
        )


def _lives(group: dist.ProcessGroup) -> bool:
    """Whether it wasn't destroyed: a wrapper holds the object for longer."""
    try:
        dist.get_process_group_ranks(group)
    except KeyError:
        return False
    return True


def _padded(tensor: Tensor, length: int) -> Tensor:
    padding = tensor.new_zeros((length - len(tensor), *tensor.shape[1:]))
    return torch.cat([tensor, padding])


# By variable, the process group that its replicas were compared in.
_compared: weakref.WeakKeyDictionary[
    EmbeddingVariable, weakref.ReferenceType[dist.ProcessGroup]
] = weakref.WeakKeyDictionary()
_compared_lock = threading.Lock()

_SAMPLED_KEYS = 4096


def _check_equal(variable: EmbeddingVariable, group: dist.ProcessGroup) -> None:
    with _compared_lock:
        compared_in = _compared.get(variable)
    if compared_in is not None and compared_in() is group:
        return
    facts: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(facts, _facts(variable), group=group)
    for rank, other in enumerate(facts):
        for fact, value in facts[0].items():
            if other[fact] != value:
                raise InvalidArgumentError(
                    f"{variable.name}: replicas must start alike, but their {fact} differ between "
                    f"rank 0 and rank {rank}; make them with the same arguments, and restore "
                    "them from the same checkpoint"
                )
    with _compared_lock:
        _compared[variable] = weakref.ref(group)


def _facts(variable: EmbeddingVariable) -> dict[str, Any]:
    keys = np.arange(_SAMPLED_KEYS)
    return {
        "names": variable.name,
        "dims": variable.dim,
        "optimizers": repr(variable.optimizer),
        "learning rates": variable.learning_rate,
        "numbers of rows": variable.total_count(),
        "rows": zlib.crc32(variable.lookup(keys, train=True).tobytes()),
        "versions": zlib.crc32(variable.get_version(keys).tobytes()),
    }
