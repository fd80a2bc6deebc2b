"""Workers that share variables end with the rows of one process, whatever dies on the way."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from job_training import EVERY, train, trained_here, variable
from sharded import assert_same

import embstore as es
from embstore.errors import CheckpointError, InvalidArgumentError, WorkerLostError

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("ray")]


@pytest.mark.parametrize(("workers", "shards"), [(1, 2), (2, 1), (3, 2)])
def test_rows_are_those_of_one_process(tmp_path: Path, workers: int, shards: int) -> None:
    rows, *others = es.cluster.run(
        train, tmp_path, shards, workers=workers, checkpoints=tmp_path / "checkpoints"
    )
    assert others == [None] * (workers - 1)
    assert_same(rows, trained_here(workers))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2, "older ones are removed"


def test_a_job_goes_on_by_itself_when_shards_and_workers_are_killed(tmp_path: Path) -> None:
    with killing(tmp_path, kills=3, seed=1) as killed:
        rows, _ = es.cluster.run(
            train, tmp_path, 2, 0.05, workers=2, checkpoints=tmp_path / "checkpoints"
        )
    assert len(killed) == 3
    assert_same(rows, trained_here(2))


def test_a_job_goes_on_where_another_process_left_it_on_another_number_of_shards(
    tmp_path: Path,
) -> None:
    checkpoints = tmp_path / "checkpoints"
    es.cluster.run(train, tmp_path, 3, 0.0, EVERY * 4 + 2, workers=2, checkpoints=checkpoints)
    rows, _ = es.cluster.run(train, tmp_path, 2, workers=2, checkpoints=checkpoints)
    assert_same(rows, trained_here(2))


def test_what_workers_tell_is_handed_on() -> None:
    heard: list[tuple[int, int]] = []
    es.cluster.run(tell, workers=2, told=lambda rank, step: heard.append((rank, step)))
    for rank in range(2):
        steps = [step for who, step in heard if who == rank]
        assert steps == sorted(set(steps))
        assert len(steps) >= 2, "while they work"


def tell(worker: es.cluster.Worker) -> None:
    for step in range(8):
        worker.tell(step)
        time.sleep(0.4)
    worker.meet()


def test_a_worker_that_fails_by_itself_is_no_failure_of_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        es.cluster.run(fail, tmp_path, workers=2)
    assert len(list(tmp_path.iterdir())) <= 2, "nothing is tried again"


def fail(worker: es.cluster.Worker, folder: Path) -> None:
    (folder / f"{os.getpid()}").touch()
    if worker.rank == 0:
        raise ZeroDivisionError
    worker.meet()


def test_a_job_that_dies_again_and_again_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match="worker 0 died"):
        es.cluster.run(die, tmp_path, most_failures=2)
    assert len(list(tmp_path.iterdir())) == 3


def die(_: es.cluster.Worker, folder: Path) -> None:
    (folder / f"{os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_damaged_checkpoint_is_told_of(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    es.cluster.run(train, tmp_path, 1, 0.0, EVERY * 2, checkpoints=checkpoints)
    dense = checkpoints / f"step-{EVERY * 2:012d}" / "state" / "dense.npy"
    for spoil in (lambda: dense.write_bytes(dense.read_bytes()[:-1] + b"!"), dense.unlink):
        spoil()
        with pytest.raises(CheckpointError, match=r"dense.npy: isn't as it was written; remove"):
            es.cluster.run(train, tmp_path, 1, checkpoints=checkpoints)


def test_a_checkpoint_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with pytest.raises(ZeroDivisionError):
        es.cluster.run(fail_in_a_checkpoint, checkpoints=checkpoints)
    assert [path.name for path in checkpoints.iterdir()] == ["step-000000000001"]
    with pytest.raises(CheckpointError, match="has a checkpoint of step 1, and this one would be"):
        es.cluster.run(fail_in_a_checkpoint, checkpoints=checkpoints)
    with pytest.raises(InvalidArgumentError, match="without a folder"):
        es.cluster.run(fail_in_a_checkpoint)


def fail_in_a_checkpoint(worker: es.cluster.Worker) -> None:
    with variable(shards=1) as items:
        for step in (1, 2):
            items.apply_gradients([step], np.ones((1, items.dim), np.float32))
            with worker.checkpoint(step, [items]):
                if step == 2:
                    raise ZeroDivisionError


def test_who_joins_again_begins_anew_and_who_was_there_is_refused() -> None:
    with es.cluster.Job(workers=2, patience_s=20) as job:
        with pytest.raises(InvalidArgumentError, match="rank must be from 0 to 1, got 2"):
            es.cluster.join(job.ticket, 2)
        first = es.cluster.join(job.ticket, 0)
        with pytest.raises(InvalidArgumentError, match="is worker 0 of a job already"):
            es.cluster.join(job.ticket, 1)
        old = variable(shards=1)
        first.leave()
        again = es.cluster.join(job.ticket, 0)
        with pytest.raises(WorkerLostError, match="started again without this one"):
            first.meet()
        with variable(shards=1) as items:
            assert items.total_count()[0] == 0
            with pytest.raises(InvalidArgumentError, match="otherwise than another worker"):
                es.get_embedding_variable("items", 5, shards=1)
        again.leave()
        with pytest.raises(WorkerLostError):
            old.close()


@contextlib.contextmanager
def killing(folder: Path, kills: int, seed: int) -> Iterator[list[str]]:
    """Ends processes that take part, one after the other, at moments by chance."""
    chance = random.Random(seed)
    killed: list[str] = []
    over = threading.Event()

    def kill() -> None:
        while len(killed) < kills and not over.wait(chance.uniform(0.2, 2.5)):
            alive = []
            for path in sorted(folder.glob("*-*")):
                kind, _, number = path.name.partition("-")
                if number.isdigit() and Path(f"/proc/{number}").exists():
                    alive.append((kind, int(number)))
            if alive:
                kind, process_id = chance.choice(alive)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
                    killed.append(kind)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
