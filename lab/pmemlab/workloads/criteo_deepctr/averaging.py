"""Workers that train one model together: the gradients of its dense parameters are averaged.

Rows are left to the tables. Only on Keras's torch backend, by torch.distributed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import keras

from embstore.errors import UnsupportedError
from pmemlab.workloads.criteo_deepctr.epochs import Worker

__all__ = ["average_dense_gradients", "joined"]

_LOOPBACK: Final = "127.0.0.1"


@contextlib.contextmanager
def joined(endpoint: str, worker: Worker) -> Iterator[None]:
    """In it the workers, of whom each must come, know each other. endpoint: IP:PORT that worker 0
    listens on.
    """
    from torch import distributed

    if endpoint.startswith(f"{_LOOPBACK}:"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo takes the host name's address
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{endpoint}", rank=worker.number, world_size=worker.count
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def average_dense_gradients(optimizer: Any) -> None:
    """Has a Keras optimizer apply the mean of all workers' gradients, the same bits on each.

    It is called in `joined`. A parameter that starts alike stays alike on all of them.
    """
    if keras.backend.backend() != "torch":
        raise UnsupportedError(
            f"several workers need KERAS_BACKEND=torch, and Keras runs on {keras.backend.backend()}"
        )
    apply = optimizer.apply

    # In place of a class around the optimizer: embstore knows Keras's optimizers by their classes.
    def apply_mean(gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> Any:
        of = optimizer._trainable_variables if variables is None else variables
        dense = [
            gradient
            for gradient, variable in zip(gradients, of, strict=True)
            # Of embstore's tables it isn't a gradient, but how often they were looked up.
            if not getattr(variable, "overwrite_with_gradient", False)
        ]
        _average_in_place(dense)
        return apply(gradients, variables)

    optimizer.apply = apply_mean


def _average_in_place(gradients: Sequence[Any]) -> None:
    import torch
    from torch import distributed

    together = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(together)
    together /= distributed.get_world_size()
    start = 0
    for gradient in gradients:
        stop = start + gradient.numel()
        gradient.copy_(together[start:stop].reshape(gradient.shape))
        start = stop
