"""Replicas of a model in several processes, under `DistributedDataParallel`.

Each process has its own variable. All must be made alike: the same name, dim, initializer,
optimizer and rows (for example, restored from one checkpoint). The first forward pass checks most
of this. When a backward pass ends, each process trains with the mean of all processes' gradients,
as with dense parameters. So rows stay equal, bit for bit, and so do frequencies, which count the
ids of all replicas.

A backward pass through look-ups outside of the wrapper's forward would train one replica alone, so
it is refused.

Backward passes in `no_sync()` gather gradients in their process; they need an
`embstore.torch.Optimizer`. A variable must take part in a backward pass in all processes or in
none. `join()`, for processes that run out of batches early, isn't supported.

Workers of an `embstore.cluster.Job` share a variable instead: each sends its own gradients, and the
shards compute the mean.
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

__all__ = ["Replicas", "check_trains_all_replicas", "current"]


@dataclass(frozen=True)
class Replicas:
    """The replicas of the forward pass that is running."""

    group: dist.ProcessGroup
    synchronizes: bool  # False in no_sync()

    def mean(self, part: GradientPart) -> GradientPart:
        """Returns all replicas' parts, ordered by rank, with gradients divided by their number."""
        world_size = dist.get_world_size(self.group)
        device = self._device()
        counts = self._all_gather(torch.tensor([len(part.ids)], device=device))
        lengths = [int(count) for count in counts]
        max_length = max(lengths)
        ids = self._all_gather(_padded(part.ids.to(device), max_length))
        grads = self._all_gather(_padded(part.grads.to(device), max_length))
        per_rank = list(zip(ids, grads, lengths, strict=True))
        return GradientPart(
            part.number,
            torch.cat([ids[:length] for ids, _, length in per_rank]).to(part.ids.device),
            torch.cat([grads[:length] for _, grads, length in per_rank]).to(part.grads.device)
            / world_size,
        )

    def _device(self) -> torch.device:
        nccl = dist.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(tensors, tensor.contiguous(), group=self.group)
        return tensors


def current(variable: EmbeddingVariable) -> Replicas | None:
    """Returns the replicas of the running forward pass. Returns None outside of
    DistributedDataParallel, with one process, and if the processes share the variable, whose shards
    compute the mean.
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


def check_trains_all_replicas(variable: EmbeddingVariable) -> None:
    """Raises UnsupportedError if a backward pass would train one of several replicas alone: if none
    of its look-ups ran in a forward of DistributedDataParallel, but an earlier look-up did, and the
    process group still exists.

    A look-up can't check this: `torch.utils.checkpoint(use_reentrant=False)` repeats look-ups
    outside of the wrapper, and sends the gradients through the first ones.
    """
    with _compared_lock:
        compared_in = _compared.get(variable)
    group = None if compared_in is None else compared_in()
    if group is not None and _exists(group):
        raise UnsupportedError(
            f"{variable.name}: its replicas would be trained apart, since it was looked up outside "
            "of DistributedDataParallel's forward; call the DistributedDataParallel wrapper and "
            "not the module in it, and checkpoint activations with use_reentrant=False"
        )


def _exists(group: dist.ProcessGroup) -> bool:
    """Returns whether the group exists: a wrapper keeps the object after the group is destroyed."""
    try:
        dist.get_process_group_ranks(group)
    except KeyError:
        return False
    return True


def _padded(tensor: Tensor, length: int) -> Tensor:
    padding = tensor.new_zeros((length - len(tensor), *tensor.shape[1:]))
    return torch.cat([tensor, padding])


# The process group in which each variable's replicas were compared.
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
