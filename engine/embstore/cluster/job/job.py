"""Jobs: several workers that share variables. `run` restarts them after any process dies."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Collection
from typing import Any

from embstore import _core
from embstore.checkpoint.arguments import directory_path
from embstore.checkpoint.persist.persisting import MAX_KEPT
from embstore.checkpoint.training.directory import TrainingDirectory
from embstore.cluster.job.actor import JobActor
from embstore.cluster.job.worker import BEAT_INTERVAL_S, JobTicket, join
from embstore.cluster.job.worker_failure import WorkerFailure
from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.ray.calls import first_line, raise_silent, wait_for
from embstore.cluster.rows import wire
from embstore.cluster.rows.pushes import PushRules
from embstore.errors import (
    EmbStoreError,
    InvalidArgumentError,
    MissingDeviceError,
    ShardLostError,
    WorkerFailedError,
    WorkerLostError,
)
from embstore.table import checks

__all__ = ["Job", "run"]

_log = logging.getLogger("embstore.cluster")

_CALLS_AT_ONCE = 4  # per worker
# Variables that packages read on import. Unpickling a function may import such a package, so that
# the function can't set them itself.
_READ_ON_IMPORT = ("KERAS_BACKEND",)
_CHECK_INTERVAL_S = 1.0
_STARTED_WITHIN_S = 60.0
# The longest times that conditions, and sockets, can wait.
_MAX_PATIENCE_S, _MAX_SILENCE_S = 1e9, 1e6


class Job:
    """A job: several workers that train the same variables. It ends with the process that made it.

        with es.cluster.Job(workers=2, checkpoints="/shared/checkpoints") as job:
            ...  # start two processes on the Ray cluster, by Ray Train, say, which call
                 # es.cluster.join(job.ticket, rank)

    workers: number of workers.
    checkpoints: a folder that all nodes share; made if its parent exists. None: no checkpoints.
    keep: number of checkpoints that are kept.
    synchronous: True: an update of a variable joins a part from each worker, so rows have the same
        bits whatever the timing. False: each worker's updates are applied as they come, once each;
        when and in which order another worker sees them is left to chance. A checkpoint then holds
        worker 0's updates up to its step, and another worker's up to a step that differs from shard
        to shard. All workers continue at the checkpoint's step, so updates of another worker around
        it may be lost or applied twice, unless all workers call `meet()` before and after.
    gradients: "mean": an update trains by the mean of the workers' gradients, as if they had
        computed the mean loss of one large batch. "sum": by their sum. Asynchronous updates use
        their own gradients in either case.
    patience_s: seconds that the others wait for a worker. During a checkpoint or a restore, which
        may take longer: seconds that it may give no sign of life.
    silence_s: seconds that a shard may give no sign of life.
    """

    def __init__(
        self,
        *,
        workers: int,
        checkpoints: str | os.PathLike[str] | None = None,
        keep: int = 2,
        synchronous: bool = True,
        gradients: str = "mean",
        patience_s: float = 300.0,
        silence_s: float = 30.0,
    ) -> None:
        count = checks.integer("workers", workers, at_least=1, at_most=wire.MAX_WORKERS - 1)
        self.patience_s = checks.real("patience_s", patience_s, above=0.0, at_most=_MAX_PATIENCE_S)
        silence_s = checks.real("silence_s", silence_s, above=0.0, at_most=_MAX_SILENCE_S)
        rules = PushRules(
            workers=count,
            is_synchronous=checks.flag("synchronous", synchronous),
            is_mean=checks.choice("gradients", gradients, ("mean", "sum")) == "mean",
            patience_s=self.patience_s,
        )
        keep_count = checks.integer("keep", keep, at_least=1, at_most=MAX_KEPT - 1)
        path = None if checkpoints is None else str(directory_path(checkpoints, "checkpoints"))
        self._is_lost = False
        self._generation = 0
        self._ray = ray_cluster.join_or_start()
        job = ""
        self._checkpoints: TrainingDirectory | None = None
        if path is not None:
            self._checkpoints = TrainingDirectory(path, keep=keep_count)
            job = self._checkpoints.take_over()
        self._made_in = _core.fork_generation()
        # On the caller's node: the actor needs nothing of another node, and ends with the caller.
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        self._actor = (
            self._ray.remote(JobActor)
            .options(
                num_cpus=0,
                scheduling_strategy=here,
                max_concurrency=_CALLS_AT_ONCE * count,
                max_restarts=0,
            )
            .remote(rules, self._checkpoints, silence_s)
        )
        # patience_s counts only for an actor that has started.
        self._check_answers(_STARTED_WITHIN_S)
        self.ticket = JobTicket(self._actor, count, path, silence_s, synchronous, job, keep_count)

    def close(self) -> None:
        """Ends the shards of variables that are still open."""
        if _core.fork_generation() != self._made_in:
            return
        if not self._ray.is_initialized():
            self._is_lost = True  # a call would start Ray again
        if not self._is_lost:
            with contextlib.suppress(ShardLostError):
                self.begin_again()
        if self._ray.is_initialized():
            with contextlib.suppress(Exception):  # the actor may be gone already
                self._ray.kill(self._actor)
        if self._checkpoints is not None:
            self._checkpoints.leave()

    def begin_again(self) -> None:
        """Ends all shards. Calls of workers that have joined are refused from now on.

        Raises ShardLostError if the job's actor is gone or silent.
        """
        try:
            self._generation = self._ask("begin_generation")
        except ShardLostError:
            self._is_lost = True
            raise

    def newest_step(self) -> int:
        """Returns the step of the newest checkpoint, or -1 if there is none."""
        newest = None if self._checkpoints is None else self._checkpoints.newest()
        return -1 if newest is None else newest.step

    def check_alive(self, ranks: Collection[int]) -> list[float]:
        """Returns for each worker the seconds since its last sign of life.

        Raises WorkerLostError if a worker of `ranks` has given none for patience_s.
        """
        silences_s: list[float] = self._ask("silences_s")
        for rank in ranks:
            if silences_s[rank] > self.patience_s:
                raise WorkerLostError(
                    f"worker {rank} has given no sign of life for {self.patience_s:g} s"
                )
        return silences_s

    def note_returned(self, rank: int) -> None:
        """Tells the actor that the worker's function has returned, without waiting for it."""
        self._actor.call.remote("note_returned", (self._generation, rank))

    def take_reports(self) -> dict[int, Any]:
        """Returns by rank each worker's last `report` since the previous call of this method."""
        reports: dict[int, Any] = self._ask("take_reports")
        return reports

    def _ask(self, method: str) -> Any:
        called = self._actor.call.remote(method, ())
        answer = wait_for(called, lambda: self._check_answers(self.patience_s), self.patience_s)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _check_answers(self, within_s: float) -> None:
        """Raises ShardLostError if the job's actor doesn't answer in time."""
        wait_for(self._actor.process_id.remote(), lambda: raise_silent(within_s), within_s)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int = 1,
    checkpoints: str | os.PathLike[str] | None = None,
    max_failures: int = 3,
    cpus_per_worker: float = 0,
    on_report: Callable[[int, Any], None] | None = None,
    **options: Any,
) -> list[Any]:
    """Calls function(worker, *arguments) in `workers` processes of the Ray cluster, and returns
    their results in the order of the workers' ranks.

        def train(worker: es.cluster.Worker) -> None:
            with es.get_embedding_variable("items", 16, optimizer=..., shards=2) as items:
                found = worker.restore([items])
                for step in range(found.step if found else 0, STEPS):
                    ...  # lookup and apply_gradients of this worker's part of the batch
                    if (step + 1) % 100 == 0:
                        with worker.checkpoint(step + 1, [items]) as folder: ...

        es.cluster.run(train, workers=2, checkpoints="/shared/checkpoints")

    If a worker, a shard or a node dies or is silent, all shards and workers are started again, and
    the function continues from the newest checkpoint that it restores. If only the dead node had
    the PMem that is needed, `run` waits for it for patience_s. If this process itself dies, the
    same call made again continues in the same way. An error that the function raises itself is
    raised here without a retry: its cause is a WorkerFailedError with the worker's traceback. The
    WorkerFailedError itself is raised if the error can't be pickled, or is a SystemExit.

    function, arguments: Ray copies them to the workers (by cloudpickle). KERAS_BACKEND goes with
        them, unless a node has its own. This process prints whatever the function prints.
    max_failures: number of failures in a row, without a new checkpoint, that are retried.
    cpus_per_worker: number of CPUs that each worker reserves on its node.
    on_report: called with a worker's rank and its newest `Worker.report`, about once a second.
    options: those of `Job`.

    Warns if the nodes can't run all workers at once: the rest then wait for free CPUs.
    """
    for name, value in (
        ("function", function),
        ("on_report", function if on_report is None else on_report),
    ):
        if not callable(value):
            raise InvalidArgumentError(f"{name} must be a function, got {value!r}")
    count = checks.integer("workers", workers, at_least=1)
    most = checks.integer("max_failures", max_failures, at_least=0)
    checks.real("cpus_per_worker", cpus_per_worker, at_least=0)
    call = _pickled(function, arguments)
    with contextlib.ExitStack() as jobs:
        job = jobs.enter_context(Job(workers=count, checkpoints=checkpoints, **options))
        failures, last_step, failed_at = 0, job.newest_step(), 0.0
        while True:
            processes = _Processes(job, cpus_per_worker)
            try:
                return processes.run(call, on_report)
            except (ShardLostError, WorkerLostError) as error:
                step = job.newest_step()
                failures = 1 if step != last_step else failures + 1
                last_step, failed_at = step, time.monotonic()
                if failures > most:
                    raise
                _log.warning(
                    "%s; all workers start again from step %d (failure %d of %d without a new "
                    "checkpoint)",
                    error,
                    max(step, 0),
                    failures,
                    most,
                )
            except MissingDeviceError as error:
                # A lost node had the device, and may come back.
                if not failures or time.monotonic() - failed_at > job.patience_s:
                    raise
                _log.warning("%s; waits for such a node", error)
                time.sleep(_CHECK_INTERVAL_S)
            finally:
                processes.end()
            try:
                job.begin_again()
            except ShardLostError:
                job.close()
                job = jobs.enter_context(Job(workers=count, checkpoints=checkpoints, **options))


def _pickled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Returns the call as its workers get it. Made before any process starts, since it may fail."""
    ray = ray_cluster.library()
    try:
        call: bytes = ray.cloudpickle.dumps((function, arguments))
    except Exception as error:  # pickling can raise anything
        raise InvalidArgumentError(
            f"{getattr(function, '__qualname__', function)} or its arguments can't be sent to "
            f"workers ({error}); put the function in a module that they can import, and give "
            "arguments that can be pickled"
        ) from error
    return call


class _WorkerActor:
    def run(
        self,
        ticket: JobTicket,
        rank: int,
        call: bytes,
        module_folders: list[str],
        environment: dict[str, str],
    ) -> Any:
        """Runs the function as worker `rank`. Returns its result, or a WorkerFailure if it fails.

        call: the pickled function and arguments. module_folders: the caller's module search path,
        which unpickling needs. environment: variables to set before that if the node hasn't.
        """
        sys.path += [folder for folder in module_folders if folder not in sys.path]
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        try:
            function, arguments = pickle.loads(call)
            worker = join(ticket, rank)
            try:
                result = function(worker, *arguments)
            finally:
                worker.leave()
            if inspect.isgenerator(result):  # Ray would return its first value only
                raise InvalidArgumentError(
                    f"function: {result.__name__} is a generator, and nothing of it has run; have "
                    "the function return a value, and report what comes before by worker.report()"
                )
            return result
        except BaseException as error:  # SystemExit too: to Ray it looks like a death
            return WorkerFailure.of(error)


class _Processes:
    """The processes of a job's workers."""

    def __init__(self, job: Job, cpus: float) -> None:
        self._ray = ray_cluster.library()
        self._job = job
        self._cpus = cpus
        ticket = job.ticket
        actor = self._ray.remote(_WorkerActor).options(
            num_cpus=cpus, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0
        )
        self._actors = [actor.remote() for _ in range(ticket.workers)]

    def run(self, call: bytes, on_report: Callable[[int, Any], None] | None) -> list[Any]:
        """Returns the workers' results by rank, or raises the error of the first that fails.

        call: the pickled function and arguments.
        """
        self._warn_if_too_few_cpus()
        exceptions = self._ray.exceptions
        environment = {name: os.environ[name] for name in _READ_ON_IMPORT if name in os.environ}
        waiting = [
            actor.run.remote(self._job.ticket, rank, call, sys.path, environment)
            for rank, actor in enumerate(self._actors)
        ]
        ranks = {reference: rank for rank, reference in enumerate(waiting)}
        results: dict[int, Any] = {}
        while waiting:
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=_CHECK_INTERVAL_S)
            if on_report is not None:
                for rank, value in sorted(self._job.take_reports().items()):
                    on_report(rank, value)
            if not done:
                self._job.check_alive([ranks[reference] for reference in waiting])
                continue
            (ready,) = done
            rank = ranks[ready]
            try:
                ended = self._ray.get(ready)
            except exceptions.RayTaskError as error:
                raise InvalidArgumentError(
                    f"function: what worker {rank} returns can't be sent back ({error.cause}); "
                    "give numbers, arrays, or what else can be pickled"
                ) from error
            except exceptions.RayError as error:
                raise _death_of_worker(rank, error) from error
            if isinstance(ended, WorkerFailure):
                failed = ended.error(rank)
                is_own = not isinstance(failed, EmbStoreError) or isinstance(
                    failed, WorkerFailedError
                )
                is_left_alone = isinstance(failed, WorkerLostError) and bool(results)
                if is_own or is_left_alone:
                    self._check_no_worker_died({other: ranks[other] for other in waiting})
                if is_left_alone:
                    raise _error_of_waiting_worker(rank, sorted(results)) from failed
                raise failed
            results[rank] = ended
            if waiting:
                self._job.note_returned(rank)
        return [results[rank] for rank in range(len(self._actors))]

    def _warn_if_too_few_cpus(self) -> None:
        """Warns if Ray has to wait for nodes with enough CPUs. An autoscaling cluster adds nodes;
        on any other, `run` gives the workers up when they have been silent for too long.
        """
        if not self._cpus:
            return
        offered = ray_cluster.offered(self._ray, "CPU")
        # The tolerance is needed because 0.3 / 0.1 is less than 3.
        if sum(int(cpus / self._cpus + 1e-6) for cpus in offered) < len(self._actors):
            warnings.warn(
                f"cpus_per_worker: {len(self._actors)} workers with {self._cpus:g} CPUs each have "
                f"no room on the cluster, whose nodes offer "
                f"{' and '.join(f'{cpus:g}' for cpus in offered) or 'none'}, and wait for more; "
                "ask for fewer, or start more nodes",
                stacklevel=4,
            )

    def _check_no_worker_died(self, running: dict[Any, int]) -> None:
        """Raises WorkerLostError if one of these workers has died: a worker's function may fail
        because another worker died, for example at a connection between the two, before Ray reports
        that death.

        Returns once each of them has ended by itself or given a later sign of life.
        """
        exceptions = self._ray.exceptions
        # A dead worker's last sign of life may arrive late, by up to the interval between signs.
        lives_since = time.monotonic() + BEAT_INTERVAL_S
        while running:
            done, _ = self._ray.wait(list(running), num_returns=len(running), timeout=0.1)
            for ended in done:
                rank = running.pop(ended)
                try:
                    self._ray.get(ended)
                except exceptions.RayTaskError:
                    pass
                except exceptions.RayError as error:
                    raise _death_of_worker(rank, error) from error
            silences_s = self._job.check_alive(running.values())
            heard_within_s = time.monotonic() - lives_since
            running = {
                left: rank for left, rank in running.items() if silences_s[rank] > heard_within_s
            }

    def end(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)


def _error_of_waiting_worker(rank: int, ended: list[int]) -> InvalidArgumentError:
    """Returns the error of a worker that waits for returned workers. A restart does not help."""
    others = " and ".join(f"worker {other}" for other in ended)
    return InvalidArgumentError(
        f"worker {rank} waited for {others}, which had returned already. Each worker of a "
        "synchronous job makes every update, checkpoint and barrier that the others make: give all "
        "as many batches, and let all stop at the same step"
    )


def _death_of_worker(rank: int, error: Exception) -> WorkerLostError:
    return WorkerLostError(f"worker {rank} died: {first_line(error)}")
