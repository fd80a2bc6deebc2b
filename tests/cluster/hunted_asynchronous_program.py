"""A program whose processes are killed: two workers that train tables asynchronously.

    python hunted_asynchronous_program.py FOLDER STORAGE [meeting]

FOLDER gets a file for each process that takes part, the checkpoints, the rows that each start of
the workers began with, and at the end result.npz; see updates_seen.py.

meeting: the workers wait for each other before and after a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hunted_program import PATIENCE_S, SHARDS, SILENCE_S, storage
from job_training import DIM
from sharded import remote_shards
from updates_seen import STEPS, TABLES, WORKERS, ids_of_update, write_rows

import embstore as es
from embstore.cluster.ray.calls import wait_for

EVERY = 6  # number of worker 0's steps between checkpoints

_PAUSE_S = (0.03, 0.02)  # of each worker in a step, so that one is ahead of the other
_ROOM_ROWS = 600  # of a shard that gets nearly full: it then holds one push at a time


@contextlib.contextmanager
def _tables(**where: Any) -> Iterator[list[es.EmbeddingVariable]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                es.get_embedding_variable(
                    f"items{number}",
                    DIM,
                    initializer=es.initializers.Zeros(),
                    optimizer=es.optimizers.SGD(1.0),
                    **where,
                )
            )
            for number in range(TABLES)
        ]


def _option(storage_name: str, folder: Path) -> es.EmbeddingVariableOption:
    if storage_name == "DRAM":
        room = es.StorageOption(es.StorageType.DRAM, storage_size=[_ROOM_ROWS * 16])
        return es.EmbeddingVariableOption(room)
    place = es.cluster.NODE_PMEM if storage_name.startswith("DRAM_PMEM") else folder / "ssd"
    return es.EmbeddingVariableOption(**storage(storage_name, place))


def train(worker: es.cluster.Worker, folder: Path, storage_name: str, meets: bool) -> None:
    (folder / f"worker-{os.getpid()}").touch()
    (folder / f"actor-{wait_for(worker._ticket.actor.process_id.remote())}").touch()
    with _tables(shards=SHARDS, ev_option=_option(storage_name, folder)) as tables:
        for shard in remote_shards(tables[0]):
            (folder / f"shard-{shard.process_id}").touch()
        found = worker.restore(tables)
        begun = 0 if found is None else found.step
        start = uuid.uuid4().hex
        if worker.rank == 0:
            before = "" if found is None else (found.path / "start").read_text()
            write_rows(folder / start, tables, begun, before)
        worker.meet()
        for step in range(begun, STEPS):
            ids = [ids_of_update(worker.rank, step)] * TABLES
            grads = [np.full((ids[0].size, DIM), -1.0, np.float32)] * TABLES
            es.lookup_many(tables, ids, train=True)
            time.sleep(_PAUSE_S[worker.rank])
            es.apply_many(tables, ids, grads, step)
            if (step + 1) % EVERY == 0:
                if meets:
                    worker.meet()
                with worker.checkpoint(step + 1, tables) as files:
                    if files is not None:
                        time.sleep(_PAUSE_S[0])
                        (files / "start").write_text(start)
                if meets:
                    worker.meet()
        worker.meet()
        if worker.rank == 0:
            write_rows(folder / "result", tables, STEPS, start)


def main(folder: Path, storage_name: str, meets: bool) -> None:
    es.cluster.run(
        train,
        folder,
        storage_name,
        meets,
        workers=WORKERS,
        checkpoints=folder / "checkpoints",
        max_failures=20,  # as in hunted_program.py
        synchronous=False,
        silence_s=SILENCE_S,
        patience_s=PATIENCE_S,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "meeting" in sys.argv[3:])
