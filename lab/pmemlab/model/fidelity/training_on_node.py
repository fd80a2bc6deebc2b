"""The training whose time on one medium is predicted from another, and a program that runs it in
memkind's memory and prints its time. MEMKIND_DAX_KMEM_NODES tells memkind its node, and must be set
before the process starts.

python -m pmemlab.model.fidelity.training_on_node \\
    '{"rows": 1000, "batch": 100, "steps": 3}' HERE THERE

HERE, THERE: device files of that node, and of the other node, for `predicted_seconds`.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np

import embstore as es
from pmemlab.model.devices import load_device
from pmemlab.model.prediction import RanIn, caches_before, predict_run

__all__ = ["fill", "new_table", "run", "train"]

_DIM = 16
_ROWS_AT_ONCE = 20_000
_ROW_BYTES = 256  # an upper bound of a row with its slots and header


def new_table(storage: es.StorageOption) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "fidelity",
        _DIM,
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
    )


def fill(variable: es.EmbeddingVariable, rows: int) -> None:
    """Trains all rows once, in random order; rows that don't fit a tier are demoted."""
    order = np.random.default_rng(0).permutation(rows)
    for ids in np.array_split(order, max(1, rows // _ROWS_AT_ONCE)):
        variable.apply_gradients(ids, np.ones((ids.size, _DIM), np.float32))
    variable.drain()


def train(variable: es.EmbeddingVariable, rows: int, batch: int, steps: int) -> float:
    """Returns the seconds of training `steps` batches, including the moves that they cause."""
    random = np.random.default_rng(1)
    batches = [random.integers(0, rows, batch) for _ in range(steps)]
    gradients = np.ones((batch, _DIM), np.float32)
    began = time.perf_counter()
    for ids in batches:
        variable.lookup(ids, train=True)
        variable.apply_gradients(ids, gradients)
    variable.drain()
    return time.perf_counter() - began


def run(
    rows: int, batch: int, steps: int, own_node_device: str, other_node_device: str
) -> dict[str, float]:
    placements = [(load_device(name),) for name in (other_node_device, own_node_device)]
    caches = caches_before(placements)
    storage = es.StorageOption(es.StorageType.PMEM_MEMKIND, storage_size=[rows * _ROW_BYTES])
    with new_table(storage) as variable:
        fill(variable, rows)
        with es.record_accesses(variable, caches=caches) as recorded:
            seconds = train(variable, rows, batch, steps)
        recorded_run = RanIn(seconds, threading.get_native_id())
        predicted = predict_run(
            recorded.phases, caches, placements[0], recorded_run, here=placements[1]
        )
        return {"seconds": seconds, "predicted_seconds": predicted.seconds}


if __name__ == "__main__":
    parameters, own_node_device, other_node_device = sys.argv[1:]
    print(
        json.dumps(
            run(
                **json.loads(parameters),
                own_node_device=own_node_device,
                other_node_device=other_node_device,
            )
        )
    )
