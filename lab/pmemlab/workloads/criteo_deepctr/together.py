"""Workers on a Ray cluster that train one model together, with tables that they share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pmemlab.workloads.criteo_deepctr.epochs import Epochs, Worker
from pmemlab.workloads.criteo_deepctr.options import ModelOptions, TableOptions, TrainingOptions

if TYPE_CHECKING:
    import embstore as es
    from pmemlab.workloads.criteo_deepctr.training import Result

__all__ = ["train_together"]


def train_together(
    epochs: Epochs,
    model: ModelOptions,
    tables: TableOptions,
    options: TrainingOptions,
    workers: int,
) -> Result:
    """As `training.train`, by so many processes; what the first of them came to.

    With options.checkpoint they go on by themselves from the newest there when one of them dies, or
    a table's; and where it has one already.
    """
    import embstore as es

    results: list[Result] = es.cluster.run(
        _train_as_one_of_them,
        epochs,
        model,
        tables,
        replace(options, checkpoint=None, load=None),
        workers=workers,
        checkpoints=options.checkpoint,
    )
    return results[0]


def _train_as_one_of_them(
    member: es.cluster.Worker,
    epochs: Epochs,
    model: ModelOptions,
    tables: TableOptions,
    options: TrainingOptions,
) -> Result:
    import os

    os.environ.setdefault("KERAS_BACKEND", "torch")
    from pmemlab.workloads.criteo_deepctr.training import train

    worker = Worker(member.rank, member.workers)
    with _all_reducing(member):
        return train(epochs, model, tables, options, worker=worker, member=member)


@contextlib.contextmanager
def _all_reducing(member: es.cluster.Worker) -> Iterator[None]:
    """In it the workers' dense gradients can be averaged."""
    import ray

    from pmemlab.workloads.criteo_deepctr.averaging import joined

    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
    first, *_ = member.meet(f"{host}:{port}")
    with joined(first, Worker(member.rank, member.workers)):
        yield
