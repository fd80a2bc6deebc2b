"""Workers on a Ray cluster that train one model together on shared tables."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.criteo_deepctr.epochs import Epochs, Worker
from benchmarks.criteo_deepctr.options import ModelOptions, TableOptions, TrainingOptions

if TYPE_CHECKING:
    import embstore as es
    from benchmarks.criteo_deepctr.training import Result, State

__all__ = ["train_with_workers"]

_REPORT_EVERY_S = 0.5
_LOOPBACK = "127.0.0.1"


def train_with_workers(
    epochs: Epochs,
    model: ModelOptions,
    tables: TableOptions,
    options: TrainingOptions,
    workers: int,
    on_progress: Callable[[State], None] = lambda _state: None,
) -> Result:
    """Like `training.train`, by several processes; returns the first worker's result.

    With options.checkpoint they resume by themselves from the newest checkpoint there, at the start
    and when a worker or a table's process dies.
    """
    import embstore as es

    results: list[Result] = es.cluster.run(
        _train_as_worker,
        epochs,
        model,
        tables,
        replace(options, checkpoint=None, load=None),
        workers=workers,
        checkpoints=options.checkpoint,
        on_report=lambda rank, state: on_progress(state) if rank == 0 else None,
    )
    return results[0]


def _train_as_worker(
    member: es.cluster.Worker,
    epochs: Epochs,
    model: ModelOptions,
    tables: TableOptions,
    options: TrainingOptions,
) -> Result:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from benchmarks.criteo_deepctr.training import train

    worker = Worker(member.rank, member.workers)
    with _process_group(member):
        # Only the first worker reports progress; the others progress alike.
        on_progress = _Reporter(member) if member.rank == 0 else lambda _state: None
        return train(
            epochs, model, tables, options, worker=worker, member=member, on_progress=on_progress
        )


class _Reporter:
    """Reports training's progress, but not every step."""

    def __init__(self, member: es.cluster.Worker) -> None:
        self._member = member
        self._last_s = 0.0

    def __call__(self, state: State) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s > _REPORT_EVERY_S:
            self._last_s = now_s
            self._member.report(state)


@contextlib.contextmanager
def _process_group(member: es.cluster.Worker) -> Iterator[None]:
    """A process group in which the workers' dense gradients can be averaged."""
    import ray
    from torch import distributed

    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
    first, *_ = member.meet(f"tcp://{host}:{port}")
    if host == _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo uses the host name's address
    distributed.init_process_group(
        "gloo", init_method=first, rank=member.rank, world_size=member.workers
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()
