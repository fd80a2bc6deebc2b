"""Workers that share variables end with the rows of one process, whichever process dies."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from example_devices import ExampleDevice
from job_training import EVERY, STEPS, Export, durable, train, trained_here, variable
from sharded import assert_same, remote_shards

import embstore as es
from embstore.checkpoint.training.directory import TrainingDirectory
from embstore.cluster.job.actor import JobActor
from embstore.cluster.job.worker import JobTicket, Worker
from embstore.cluster.ray.calls import wait_for
from embstore.errors import (
    CheckpointError,
    InvalidArgumentError,
    MissingDeviceError,
    ShardLostError,
    WorkerFailedError,
    WorkerLostError,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]


def test_rows_are_those_of_one_process(tmp_path: Path) -> None:
    """The job's long tests below kill and stop processes."""
    rows, *others = es.cluster.run(
        train, tmp_path, 2, workers=3, checkpoints=tmp_path / "checkpoints"
    )
    assert others == [None] * 2
    assert_same(rows, trained_here(3))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2, "older ones are removed"


@pytest.mark.long
def test_a_job_continues_when_shards_and_workers_are_killed(tmp_path: Path) -> None:
    with killing(tmp_path, ("shard", "worker"), seed=1) as killed:
        rows, _ = es.cluster.run(
            train, tmp_path, 2, 0.05, workers=2, checkpoints=tmp_path / "checkpoints"
        )
    assert killed == ["shard", "worker"]
    assert_same(rows, trained_here(2))


@pytest.mark.long
def test_a_job_continues_when_its_actor_is_killed(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    rows, _ = es.cluster.run(
        train_and_kill_once, tmp_path, "keeper", workers=2, checkpoints=checkpoints
    )
    assert (tmp_path / "ended").exists()
    assert_same(rows, trained_here(2))


@pytest.mark.long
def test_a_stopped_worker_is_noticed_although_no_worker_waits_for_it(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    (rows,) = es.cluster.run(
        train_and_kill_once, tmp_path, "itself", checkpoints=checkpoints, patience_s=3.0
    )
    assert (tmp_path / "ended").exists()
    assert_same(rows, trained_here(1))


@pytest.mark.long
def test_a_job_actor_that_takes_longer_than_patience_s_to_start_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class StartsSlowly(JobActor):
        def __init__(self, *arguments: Any) -> None:
            time.sleep(3.0)
            super().__init__(*arguments)

    monkeypatch.setattr("embstore.cluster.job.job.JobActor", StartsSlowly)
    with es.cluster.Job(workers=1, patience_s=1.0) as job:
        assert len(job.check_alive([])) == 1


@pytest.mark.long
def test_a_stopped_job_actor_is_noticed(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    (rows,) = es.cluster.run(
        train_and_kill_once,
        *(tmp_path, "keeper", signal.SIGSTOP),
        checkpoints=checkpoints,
        patience_s=3.0,
    )
    assert_same(rows, trained_here(1))


def train_and_kill_once(
    worker: es.cluster.Worker, folder: Path, whom: str, how: signal.Signals = signal.SIGKILL
) -> Export | None:
    """Trains, and then kills or stops the job's actor, or stops itself."""
    rows = train(worker, folder, 1)
    if worker.rank == 0 and not (folder / "ended").exists():
        (folder / "ended").touch()
        if whom == "itself":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(wait_for(worker._ticket.actor.process_id.remote()), how)
    worker.meet()
    return rows


@pytest.mark.long
def test_a_shard_waits_for_files_that_an_ended_shard_still_holds(tmp_path: Path) -> None:
    def stored(**where: Any) -> es.EmbeddingVariable:
        option = es.StorageOption(es.StorageType.DRAM_SSDHASH, [None, tmp_path], [16 * 48, 1 << 20])
        return variable(storage_option=option, **where)

    with (
        es.cluster.Job(workers=1) as job,
        joined_worker(job),
        contextlib.closing(stored()) as holds,
    ):
        frees = threading.Timer(1.0, holds.close)
        frees.start()
        stored(shards=1).close()
        frees.join()


@pytest.mark.long
def test_closing_a_stopped_shard_raises_an_error() -> None:
    with es.cluster.Job(workers=1, silence_s=1.0) as job, joined_worker(job):
        items = variable(shards=1)
        (shard,) = remote_shards(items)
        os.kill(shard.process_id, signal.SIGSTOP)
        with pytest.raises(ShardLostError, match="no sign of life for 1 s"):
            items.close()


def test_a_job_whose_shards_would_start_with_kept_rows_is_refused(
    tmp_path: Path,
) -> None:
    files = es.StorageOption(
        *(es.StorageType.DRAM_SSDHASH, [None, tmp_path], [16 * 48, 1 << 20]),
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )
    with (
        es.cluster.Job(workers=1) as job,
        joined_worker(job),
        pytest.raises(InvalidArgumentError, match="keep_files: a job's rows come back from"),
    ):
        variable(shards=1, storage_option=files)


@pytest.mark.long
def test_a_job_that_another_one_replaced_publishes_no_checkpoint(tmp_path: Path) -> None:
    refused = pytest.raises(CheckpointError, match="another job has begun to keep")
    with (
        es.cluster.Job(workers=1, checkpoints=tmp_path) as job,
        joined_worker(job) as worker,
        variable(shards=1) as items,
    ):
        with refused, worker.checkpoint(1, [items]):
            es.cluster.Job(workers=1, checkpoints=tmp_path).close()
        with refused, worker.checkpoint(1, [items]):
            pass
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def joined_worker(job: es.cluster.Job) -> Iterator[es.cluster.Worker]:
    worker = es.cluster.join(job.ticket, 0)
    try:
        yield worker
    finally:
        worker.leave()


@pytest.mark.long
def test_a_job_waits_for_a_device_that_was_there_and_raises_for_one_that_never_was(
    tmp_path: Path,
) -> None:
    with pytest.raises(MissingDeviceError):
        es.cluster.run(miss_a_device, tmp_path, 0)
    assert es.cluster.run(miss_a_device, tmp_path, 1, patience_s=20.0) == ["found"]


def miss_a_device(_: es.cluster.Worker, folder: Path, dies_at: int) -> str:
    """Dies once, finds the device missing twice, and then finds it."""
    (folder / f"{dies_at} {os.getpid()}").touch()
    calls = len(list(folder.glob(f"{dies_at} *")))
    if calls == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if calls <= 3:
        raise MissingDeviceError("no such device")
    return "found"


@pytest.mark.long
def test_a_job_persists_tables_in_durable_pools(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    storage = durable(tmp_path / "pools")
    with killing(tmp_path, ("worker", "shard", "shard"), seed=2) as killed:
        rows, _ = es.cluster.run(
            train, tmp_path, 2, 0.05, STEPS, storage, workers=2, checkpoints=checkpoints
        )
    assert killed == ["worker", "shard", "shard"]
    assert_same(rows, trained_here(2))
    newest = checkpoints / f"step-{STEPS // EVERY * EVERY:012d}"
    assert not (newest / "tables").exists(), "no row is written twice"
    with pytest.raises(InvalidArgumentError, match=r'not of "items\.part0 of 3"'):
        es.cluster.run(train, tmp_path, 3, 0.0, STEPS, storage, workers=2, checkpoints=checkpoints)
    rows, _ = es.cluster.run(
        train, tmp_path, 2, 0.0, STEPS + 5, storage, workers=2, checkpoints=checkpoints
    )
    assert_same(rows, trained_here(2, STEPS + 5))


@pytest.mark.long
def test_a_persisted_checkpoint_that_was_never_published_is_given_up(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    storage = durable(tmp_path / "pools")
    for unnamed in (EVERY, EVERY * 3):
        es.cluster.run(train, tmp_path, 2, 0.0, unnamed, storage, checkpoints=checkpoints)
        shutil.rmtree(checkpoints / f"step-{unnamed:012d}")
        if unnamed == EVERY:  # no checkpoint has been published before
            for note in (tmp_path / "pools").glob("*.listed-at"):
                note.rename(note.with_suffix(".begun-at"))
        (rows,) = es.cluster.run(
            train, tmp_path, 2, 0.0, unnamed - 1, storage, checkpoints=checkpoints
        )
        assert_same(rows, trained_here(1, unnamed - 1))


@pytest.mark.long
def test_a_job_continues_from_another_processs_checkpoint_on_other_shards(
    tmp_path: Path,
) -> None:
    checkpoints = tmp_path / "checkpoints"
    es.cluster.run(train, tmp_path, 3, 0.0, EVERY * 4 + 2, checkpoints=checkpoints)
    (rows,) = es.cluster.run(train, tmp_path, 2, checkpoints=checkpoints)
    assert_same(rows, trained_here(1))


@pytest.mark.long
def test_reports_of_workers_reach_the_program() -> None:
    heard: list[tuple[int, int]] = []
    es.cluster.run(report, workers=2, on_report=lambda rank, step: heard.append((rank, step)))
    for rank in range(2):
        steps = [step for who, step in heard if who == rank]
        assert steps == sorted(set(steps))
        assert len(steps) >= 2, "while they work"


def report(worker: es.cluster.Worker) -> None:
    for step in range(6):
        worker.report(step)
        time.sleep(0.4)
    worker.meet()


@pytest.mark.long
def test_an_error_of_a_workers_function_is_raised_without_a_retry(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        es.cluster.run(fail, tmp_path, workers=2)
    assert "in fail" in str(raised.value.__cause__), "the worker's traceback"
    assert len(list(tmp_path.iterdir())) <= 2, "nothing is tried again"


def fail(worker: es.cluster.Worker, folder: Path) -> None:
    (folder / f"{os.getpid()}").touch()
    if worker.rank == 0:
        raise ZeroDivisionError
    worker.meet()


class TwoArgumentsError(Exception):
    """An error whose pickle has only one of the two arguments, and so can't be read."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


def raise_two_arguments() -> None:
    raise TwoArgumentsError(7, "no such column")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        pytest.param(
            raise_two_arguments,
            r"worker 0: .*TwoArgumentsError: 7: no such column",
            marks=pytest.mark.long,
        ),
        (lambda: sys.exit(3), "worker 0: SystemExit: 3"),
    ],
)
def test_every_kind_of_end_of_a_function_is_reported_once(
    tmp_path: Path, failure: Callable[[], None], message: str
) -> None:
    def function(_worker: es.cluster.Worker) -> None:
        (tmp_path / f"{os.getpid()}").touch()
        failure()

    with pytest.raises(WorkerFailedError, match=message) as raised:
        es.cluster.run(function)
    assert "in function" in str(raised.value), "the worker's traceback"
    assert len(list(tmp_path.iterdir())) == 1, "nothing is tried again"


def test_values_that_cannot_be_sent_are_named(tmp_path: Path) -> None:
    refused = tmp_path / "refused"

    def send_locks(worker: es.cluster.Worker) -> Any:
        for send in (worker.report, worker.meet):
            try:
                send(Lock())
            except InvalidArgumentError as error:
                with refused.open("a") as file:
                    file.write(f"{send.__name__}: {error}\n")
        return Lock()

    message = "function: what worker 0 returns can't be sent .*pickle.*; give"
    with pytest.raises(InvalidArgumentError, match=message):
        es.cluster.run(send_locks)
    reported, met = refused.read_text().splitlines()
    assert re.match("report: value can't be sent .*; give", reported)
    assert re.match("meet: value can't be sent .*; give", met)


def test_a_function_that_is_a_generator_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="is a generator, and nothing of it has run"):
        es.cluster.run(lambda _worker: (step for step in range(3)))


@pytest.mark.long
def test_a_worker_that_fails_because_another_died_is_retried(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "connection")
    assert es.cluster.run(fail_because_another_dies, tmp_path, workers=2) == [1, 1]


def fail_because_another_dies(worker: es.cluster.Worker, folder: Path) -> int:
    worker.meet()
    if worker.generation == 0:
        with (folder / "connection").open("r" if worker.rank == 0 else "w") as connection:
            if worker.rank == 0:
                connection.read()
                raise ConnectionError("connection closed by peer")
        time.sleep(0.5)  # the other worker fails first
        os.kill(os.getpid(), signal.SIGKILL)
    return worker.generation


@pytest.mark.long
def test_a_job_that_keeps_dying_raises_the_last_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match="worker 0 died"):
        es.cluster.run(die, tmp_path, max_failures=2)
    assert len(list(tmp_path.iterdir())) == 3


def die(_: es.cluster.Worker, folder: Path) -> None:
    (folder / f"{os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_restoring_a_damaged_checkpoint_raises_an_error(tmp_path: Path) -> None:
    dense = tmp_path / f"step-{1:012d}" / "state" / "dense.npy"
    with (
        es.cluster.Job(workers=1, checkpoints=tmp_path) as job,
        joined_worker(job) as worker,
        variable(shards=1) as items,
    ):
        with worker.checkpoint(1, [items]) as place:
            assert place is not None
            np.save(place / "dense.npy", np.ones(3))
        assert worker.restore([items]) is not None
        for spoil in (lambda: dense.write_bytes(dense.read_bytes()[:-1] + b"!"), dense.unlink):
            spoil()
            with pytest.raises(CheckpointError, match=r"dense.npy: isn't as it was written; remov"):
                worker.restore([items])


@pytest.mark.long
def test_a_checkpoint_that_fails_keeps_the_previous_one(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with pytest.raises(CheckpointError, match="has a checkpoint of step 1, and this one would be"):
        es.cluster.run(fail_in_a_checkpoint, checkpoints=checkpoints)
    assert [path.name for path in checkpoints.iterdir()] == ["step-000000000001"]


def fail_in_a_checkpoint(worker: es.cluster.Worker) -> None:
    with variable(shards=1) as items:
        with worker.checkpoint(1, [items]):
            pass
        with contextlib.suppress(ZeroDivisionError), worker.checkpoint(2, [items]):
            raise ZeroDivisionError
        with worker.checkpoint(1, [items]):
            pass


@pytest.mark.long
def test_a_variable_that_workers_do_not_share_is_refused_in_checkpoints(
    tmp_path: Path,
) -> None:
    """Only worker 0's rows would be saved and restored."""
    refused = pytest.raises(InvalidArgumentError, match=r"^variables: .* of items;")
    folder = tmp_path / "saved"
    with (
        es.cluster.Job(workers=2, checkpoints=folder) as job,
        joined_worker(job) as worker,
        variable() as items,
    ):
        with refused:
            worker.restore([items])
        with refused, worker.checkpoint(1, [items]):
            pass
    with (
        es.cluster.Job(workers=1, checkpoints=folder) as job,
        joined_worker(job) as worker,
        variable() as items,
        worker.checkpoint(1, [items]),
    ):
        pass


@pytest.mark.long
def test_workers_at_different_checkpoints_raise_an_error(tmp_path: Path) -> None:
    with (
        es.cluster.Job(workers=2, checkpoints=tmp_path / "saved", patience_s=20) as job,
        joined_worker(job) as first,
        variable(shards=1) as items,
        ThreadPoolExecutor(1) as thread,
    ):
        second = Worker(job.ticket, 1)

        def keep(worker: Worker, step: int) -> None:
            with worker.checkpoint(step, [items]):
                pass

        for step in (3, 7):
            kept = thread.submit(keep, second, step)
            keep(first, step)
            kept.result()
        kept = thread.submit(keep, second, 8)
        with pytest.raises(InvalidArgumentError, match=r"step: .* step 9.*worker 1 gives 8"):
            keep(first, 9)
        with pytest.raises(InvalidArgumentError, match="worker 1 gives 8"):
            kept.result()
        shutil.copytree(tmp_path / "saved", tmp_path / "older")
        shutil.rmtree(tmp_path / "older" / "step-000000000009")
        second._checkpoints = TrainingDirectory(tmp_path / "older")  # a stale view of the folder
        found = thread.submit(second.restore, [items])
        with pytest.raises(CheckpointError, match=r"that of step 9 in .*worker 1 that of step 7"):
            first.restore([items])
        with pytest.raises(CheckpointError, match="worker 1 that of step 7"):
            found.result()
        second.leave()


def update_a_different_number_of_times(worker: es.cluster.Worker, starts: Path) -> None:
    with starts.open("a") as file:
        file.write(f"{worker.rank}\n")
    with variable(shards=1) as items:
        for _ in range(3 - worker.rank):
            items.apply_gradients([7], np.ones((1, items.dim), np.float32))


@pytest.mark.long
@pytest.mark.timeout(200)  # less than patience_s
def test_a_worker_that_returns_early_ends_the_job_at_once_without_a_retry(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidArgumentError, match="worker 0 waited for worker 1, which had retur"):
        es.cluster.run(update_a_different_number_of_times, tmp_path / "starts", workers=2)
    assert sorted((tmp_path / "starts").read_text().split()) == ["0", "1"]


@pytest.mark.long
@pytest.mark.timeout(200)  # less than patience_s
def test_waiting_for_a_worker_that_has_returned_fails_at_once() -> None:
    no_meeting = pytest.raises(WorkerLostError, match="worker 1 has returned, and comes to no meet")
    with (
        es.cluster.Job(workers=2) as job,
        joined_worker(job) as first,
        ThreadPoolExecutor(1) as thread,
    ):
        second = Worker(job.ticket, 1)
        met = thread.submit(first.meet)
        second.meet()
        met.result()
        waiting = thread.submit(first.meet)
        second.leave()
        job.note_returned(1)
        with no_meeting:
            waiting.result()
        with no_meeting:
            first.meet()
        variable(shards=1).close()  # a worker may be one variable ahead
        with pytest.raises(WorkerLostError, match="worker 1 hasn't made and closed it and has ret"):
            variable(shards=1)


def test_a_function_that_cannot_be_sent_to_workers_is_named() -> None:
    lock = threading.Lock()

    def holds_a_lock(_: es.cluster.Worker) -> bool:
        return lock.locked()

    with pytest.raises(InvalidArgumentError, match=r"holds_a_lock or its arg.*pickle.*in a module"):
        es.cluster.run(holds_a_lock)


def test_too_few_cpus_for_the_workers_cause_a_warning_at_once() -> None:
    room = (
        r"^cpus_per_worker: 2 workers with 4096 CPUs each have no room .* ask for fewer, or start"
    )
    with warnings.catch_warnings():
        # Raised as an exception, so that run() doesn't wait for such a node.
        warnings.filterwarnings("error", message="cpus_per_worker")
        with pytest.raises(UserWarning, match=room):
            es.cluster.run(len, workers=2, cpus_per_worker=4096, max_failures=0)


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ([3], {}, "function must be a function, got 3"),
        ([len], {"on_report": 3}, "on_report must be a function, got 3"),
        ([len], {"cpus_per_worker": -1}, "cpus_per_worker must be at least 0, got -1"),
        ([len], {"cpus_per_worker": "1"}, "cpus_per_worker must be a number, got '1'"),
    ],
)
def test_bad_arguments_of_run_are_named(
    arguments: list[Any], options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        es.cluster.run(*arguments, workers=1, **options)


@pytest.mark.long
def test_a_checkpoint_may_take_longer_than_patience_s(tmp_path: Path) -> None:
    done = es.cluster.run(  # patience_s must also suffice for a start on a busy computer
        keep_for_long, 20.0, workers=2, checkpoints=tmp_path, patience_s=15.0, max_failures=0
    )
    assert done == [2, 2]


def keep_for_long(worker: es.cluster.Worker, seconds: float) -> int:
    with variable(shards=1) as items:
        for step in (1, 2):
            items.apply_gradients([step], np.ones((1, items.dim), np.float32))
            with worker.checkpoint(step, [items]) as folder:
                if folder is not None and step == 1:
                    time.sleep(seconds)
        worker.meet()
        return items.total_count()[0]


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("workers", 0, "workers must be at least 1"),
        ("checkpoints", "a\0b", "checkpoints must be text .* without NUL"),
        ("checkpoints", "", "checkpoints must name a directory"),
        ("keep", 0, "keep must be at least 1"),
        ("synchronous", "no", "synchronous must be True or False"),
        ("gradients", "max", "gradients must be one of mean, sum"),
        ("patience_s", 0, "patience_s must be greater than 0"),
        ("patience_s", float("nan"), "patience_s must be finite"),
        ("silence_s", "30", "silence_s must be a number"),
        ("patience_s", 1e308, "patience_s must be at most 1e\\+09"),
        ("silence_s", 1e10, "silence_s must be at most 1e\\+06"),
    ],
)
def test_bad_arguments_of_a_job_are_named(option: str, value: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        es.cluster.Job(**{"workers": 2, option: value})


@pytest.mark.parametrize("rank", ["0", 1.0, True, None])
def test_a_rank_that_is_no_integer_is_refused(rank: Any) -> None:
    ticket = JobTicket(actor=None, workers=2, checkpoints=None, silence_s=30.0)
    with pytest.raises(InvalidArgumentError, match="rank must be an integer"):
        es.cluster.join(ticket, rank)


@pytest.mark.long
def test_a_worker_that_joins_again_restarts_the_job_and_the_earlier_one_is_refused() -> None:
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
            with (
                pytest.raises(InvalidArgumentError, match="without a folder"),
                again.checkpoint(1, [items]),
            ):
                pass
            evicts = es.EmbeddingVariableOption(evict_option=es.GlobalStepEvict(7))
            with pytest.raises(InvalidArgumentError, match=r"with other dim and .* evict option;"):
                es.get_embedding_variable("items", 5, ev_option=evicts, shards=1)
        again.leave()
        with pytest.raises(WorkerLostError):
            old.close()


@pytest.mark.long
def test_a_variable_that_is_made_again_waits_for_workers_that_have_not_made_it_yet(
    tmp_path: Path,
) -> None:
    assert es.cluster.run(make_twice, tmp_path, workers=2) == [1, 1]


def make_twice(worker: es.cluster.Worker, folder: Path) -> int:
    """Makes the variable twice. Worker 1 begins when worker 0 has closed one of its shards."""
    is_half_closed = folder / "half closed"
    while worker.rank == 1 and not is_half_closed.exists():
        time.sleep(0.02)
    with variable(shards=2) as items:
        if worker.rank == 0:
            remote_shards(items)[0].close()
            is_half_closed.touch()
            time.sleep(2.0)
    with es.get_embedding_variable(
        "items", items.dim, optimizer=es.optimizers.SGD(0.1), shards=2
    ) as again:
        again.apply_gradients([7], np.ones((1, again.dim), np.float32))
        return again.total_count()[0]


@pytest.mark.long
def test_a_worker_that_makes_a_variable_more_often_is_told_whom_it_waits_for() -> None:
    with es.cluster.Job(workers=2, patience_s=1.0) as job, joined_worker(job):
        variable(shards=1).close()
        with pytest.raises(WorkerLostError, match="worker 1 hasn't made and closed it for 1 s"):
            variable(shards=1)


@pytest.mark.long
def test_a_worker_that_gives_another_number_of_shards_is_refused() -> None:
    refused = pytest.raises(InvalidArgumentError, match=r"another worker, with other shards; give")
    with es.cluster.Job(workers=1) as job, joined_worker(job), variable(shards=2), refused:
        variable(shards=3)


@pytest.mark.long
def test_a_worker_that_makes_a_variable_differently_is_told_the_differences() -> None:
    def items(dim: int = 3, seed: int = 7, filter_freq: int = 2) -> es.EmbeddingVariable:
        option = es.EmbeddingVariableOption(filter_option=es.CounterFilter(filter_freq))
        drawn = es.initializers.RandomUniform(seed=seed)
        return es.get_embedding_variable(
            "items", dim, initializer=drawn, ev_option=option, shards=1
        )

    with es.cluster.Job(workers=1) as job, joined_worker(job), items():
        for others, told in (
            ({"dim": 4}, "other dim and initial rows"),
            ({"seed": 8}, r"with other initial rows .*set_random_seed first\); give all"),
            ({"filter_freq": 5}, "with other filter; give all"),
        ):
            with pytest.raises(InvalidArgumentError, match=told):
                items(**others)


@pytest.mark.long
def test_an_asynchronous_variable_stays_open_for_workers_that_have_not_made_it_yet() -> None:
    with es.cluster.Job(workers=2, synchronous=False, patience_s=1.0) as job:
        with joined_worker(job), variable(shards=2) as items:
            items.apply_gradients([7, 8, 9], np.ones((3, items.dim), np.float32))
        slow = es.cluster.join(job.ticket, 1)
        with variable(shards=2) as items:
            assert items.get_frequency([7, 8, 9]).tolist() == [1, 1, 1]
        with variable(shards=2) as again:
            assert again.total_count()[0] == 0
        with pytest.raises(WorkerLostError, match="worker 0 hasn't made and closed it for 1 s"):
            variable(shards=2)
        slow.leave()  # the job ends with a variable that worker 0 never made


@pytest.mark.long
def test_a_worker_that_makes_an_open_variable_again_is_told_to_close_it_first() -> None:
    with es.cluster.Job(workers=1) as job, joined_worker(job):
        with variable(shards=2) as items:
            items.apply_gradients([7], np.ones((1, items.dim), np.float32))
            with pytest.raises(InvalidArgumentError, match="worker 0 has it already; close it"):
                variable(shards=2)
            items.apply_gradients([7], np.ones((1, items.dim), np.float32))
            assert items.get_frequency([7]).tolist() == [2]
        with variable(shards=2) as again:
            assert again.total_count()[0] == 0


@pytest.mark.long
def test_a_variable_whose_link_was_lost_is_closed_and_its_next_updates_count() -> None:
    with es.cluster.Job(workers=1) as job, joined_worker(job):
        items = variable(shards=1)
        items.apply_gradients([7], np.ones((1, items.dim), np.float32))
        (shard,) = remote_shards(items)
        shard.server.lost = "it has given no sign of life"
        with pytest.raises(ShardLostError):
            items.apply_gradients([7], np.ones((1, items.dim), np.float32))
        items.close()
        with variable(shards=1) as again:
            assert again.total_count()[0] == 0
            again.apply_gradients([7], np.ones((1, again.dim), np.float32))
            assert again.get_frequency([7]).tolist() == [1]


@pytest.mark.long
def test_workers_must_pace_tiers_by_the_same_devices() -> None:
    def paced(latency_ns: float) -> es.EmbeddingVariable:
        device = ExampleDevice("slow-memory", lambda *_: latency_ns)
        option = es.EmbeddingVariableOption(
            storage_option=es.StorageOption(storage_type=es.StorageType.DRAM, devices=[device])
        )
        return es.get_embedding_variable("paced", 4, ev_option=option, shards=1)

    with es.cluster.Job(workers=2) as job:
        first = es.cluster.join(job.ticket, 0)
        with paced(2000):
            first.leave()
            second = es.cluster.join(job.ticket, 1)
            with (
                paced(2000),
                pytest.raises(InvalidArgumentError, match="otherwise than another worker"),
            ):
                paced(3000)
            second.leave()


@contextlib.contextmanager
def killing(folder: Path, kinds: Sequence[str], seed: int) -> Iterator[list[str]]:
    """Kills a process of each kind that takes part, one after the other, at random moments."""
    chance = random.Random(seed)
    killed: list[str] = []
    over = threading.Event()

    def kill() -> None:
        while len(killed) < len(kinds) and not over.wait(chance.uniform(0.2, 2.5)):
            kind = kinds[len(killed)]
            numbers = sorted(int(path.name.split("-")[1]) for path in folder.glob(f"{kind}-*"))
            alive = [number for number in numbers if Path(f"/proc/{number}").exists()]
            if alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(alive), signal.SIGKILL)
                    killed.append(kind)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
