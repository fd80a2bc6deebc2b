"""A worker of a job: the variables that it shares, and the checkpoints that all restart from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embstore.checkpoint.arguments import check_variables
from embstore.checkpoint.training.directory import TrainingCheckpoint, TrainingDirectory
from embstore.checkpoint.training.tables import restore_tables, writing_checkpoint
from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.ray.calls import wait_for
from embstore.cluster.rows.remote_shard import RemoteShard
from embstore.cluster.rows.server_link import ServerLink, ServerLinks
from embstore.cluster.server.shard_placement import OpenShard
from embstore.errors import (
    CheckpointError,
    InvalidArgumentError,
    ShardLostError,
    WorkerLostError,
)
from embstore.options import Tier
from embstore.table import checks
from embstore.table.shard import Shard, ShardSpec
from embstore.variable import EmbeddingVariable

__all__ = ["BEAT_INTERVAL_S", "JobTicket", "Worker", "current_worker", "join"]

BEAT_INTERVAL_S = 1.0

_VALUE_METHODS = ("meet", "report")  # the program gives them a value

_current: Worker | None = None


@dataclass(frozen=True)
class JobTicket:
    """The data that a worker needs to join a job. Any process of its Ray cluster can use it."""

    actor: Any  # Ray's handle of the `JobActor`
    workers: int
    checkpoints: str | None
    silence_s: float
    is_synchronous: bool = True
    job: str = ""  # the job's name in its checkpoint folder
    keep: int = 2


class Worker:
    """One of the processes that train the same variables.

    While a process is a worker, `get_embedding_variable(..., shards=n)` returns the variable of
    that name that all workers share. In a synchronous job each worker must train the same variables
    in the same order: `apply_gradients` returns when all workers have called it, and then all see
    its rows. A worker that closes a variable and makes it again waits until the others have closed
    it too.
    """

    def __init__(self, ticket: JobTicket, rank: int) -> None:
        self._ticket = ticket
        self._rank = rank
        self._checkpoints = (
            None
            if ticket.checkpoints is None
            else TrainingDirectory(ticket.checkpoints, ticket.job, ticket.keep)
        )
        self._links = ServerLinks()
        self._meetings = 0
        self._generation: int = self._ask("join", rank)
        self._has_left = threading.Event()
        threading.Thread(target=self._beat, name="embstore-beat", daemon=True).start()

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._rank

    @property
    def workers(self) -> int:
        return self._ticket.workers

    @property
    def has_checkpoints(self) -> bool:
        """True if the job was started with a folder for checkpoints."""
        return self._checkpoints is not None

    @property
    def generation(self) -> int:
        """The number of restarts of the job's workers. All workers of one start have the same
        number, so it can name resources that they share, such as a file at which they meet.
        """
        return self._generation

    def shard(self, variable: str, count: int, tiers: Sequence[Tier], spec: ShardSpec) -> Shard:
        """Opens the variable's shard that all workers share."""
        opened: OpenShard = self._ask(
            "shard", self._generation, self._rank, variable, count, tiers, spec
        )

        def connect() -> ServerLink:
            return ServerLink(
                opened.actor,
                opened.server,
                opened.address,
                worker=self._rank,
                silence_s=self._ticket.silence_s,
                prepares_in_turn=not self._ticket.is_synchronous,
            )

        link = self._links.use(opened.address, connect)
        return RemoteShard(
            link,
            opened.table,
            spec,
            close_shared=lambda: self._ask(
                "leave", self._generation, self._rank, variable, spec.name
            ),
            on_end=lambda: self._links.leave(link),
            place=opened.place,
        ).as_shard()

    def meet(self, value: Any = None) -> list[Any]:
        """Waits until every worker has called it as often as this one. Returns all workers'
        values, in the order of their ranks. They go through Ray; keep `value` small.

        Raises WorkerLostError if a worker doesn't come.
        """
        self._meetings += 1
        values: list[Any] = self._ask("meet", self._generation, self._rank, self._meetings, value)
        return values

    def report(self, value: Any) -> None:
        """Sends `value` to the function `on_report` of `embstore.cluster.run`, which gets only the
        newest one of each worker. It goes through Ray, in about a millisecond; keep it small.
        """
        self._ask("report", self._generation, self._rank, value)

    def restore(self, variables: Sequence[EmbeddingVariable]) -> TrainingCheckpoint | None:
        """Restores the variables from the job's newest checkpoint, and returns the checkpoint; None
        if there is none yet.

        All workers must call it; it returns when the rows are restored. The checkpoint's `path`
        holds the program's own files, which are verified. The number of shards and the storage type
        may differ from those of the checkpoint, except for variables with durable pools. Raises
        CheckpointError, also if workers find different checkpoints, and the errors of
        `embstore.restore`. Raises InvalidArgumentError for a variable that the workers don't share.
        """
        self._check_variables(variables)
        for variable in variables:
            variable.internals.forget_prefetched()
        with self._folder().reading_newest() as checkpoint:
            if checkpoint is not None:
                checkpoint.check()
            if self._rank == 0:
                with self._others_waiting():
                    restore_tables(checkpoint, self._folder().pools, variables)
        # Each worker looks by itself: a network file system may show some nodes an older listing.
        found = self.meet(None if checkpoint is None else checkpoint.step)
        if other := _first_that_differs(found):
            seen = ["none" if step is None else f"that of step {step}" for step in found]
            raise CheckpointError(
                f"checkpoints: worker 0 found {seen[0]} in {self._folder().folder}, and worker "
                f"{other} {seen[other]}; give a folder that all nodes share, and start again"
            )
        for variable in variables:
            variable.internals.rate_changes += 1  # the restore counted it in worker 0 only
        return checkpoint

    @contextlib.contextmanager
    def checkpoint(
        self, step: int, variables: Sequence[EmbeddingVariable]
    ) -> Iterator[Path | None]:
        """Saves the variables, and the files that the `with` block writes into the folder that it
        gets, as one checkpoint. Variables with durable pools (`StorageOption(durability=...)`) are
        persisted: only changed rows are written, and they are restored on the same nodes.

            with worker.checkpoint(step, [items, users]) as folder:
                if folder is not None:  # in worker 0
                    torch.save(model.state_dict(), folder / "dense.pt")

        All workers call it, after the same step; the block gets None in all but worker 0. The
        checkpoint counts once all of it is on the medium, when worker 0 leaves the block; until
        then, and if anything fails, the previous checkpoint stays the newest. In a synchronous job
        the other workers wait for that too; in an asynchronous job they don't.

        step: number of steps that are done; greater than that of every checkpoint in the folder.
            All workers must give the same.
        variables: variables that the workers share. Raises InvalidArgumentError for any other,
            unless there is one worker.
        """
        done = checks.integer("step", step, at_least=0)
        self._check_variables(variables)
        checkpoints = self._folder()
        if self._rank != 0:
            yield None
        else:
            # No synchronous update comes in between: it would need this worker's part.
            with (
                self._others_waiting(),
                writing_checkpoint(checkpoints, variables, done, self._publish) as folder,
            ):
                yield folder
        if self._ticket.is_synchronous:
            # Wait here for a long checkpoint: an update would give up after patience_s.
            steps = self.meet(done)
            if other := _first_that_differs(steps):
                raise InvalidArgumentError(
                    f"step: worker 0 made the checkpoint of step {steps[0]}, and worker {other} "
                    f"gives {steps[other]}; all workers must call it after the same step"
                )
        for variable in variables:
            variable.internals.forget_evicted(*variable.ev_option.eviction_limits(done))

    def _check_variables(self, variables: Sequence[EmbeddingVariable]) -> None:
        """Raises InvalidArgumentError for a variable that the workers don't share: worker 0 saves
        and restores for all, and would save only its own rows of it.
        """
        for variable in check_variables(variables):
            if self.workers > 1 and not variable.internals.is_shared:
                raise InvalidArgumentError(
                    f"variables: each of the {self.workers} workers has rows of its own of "
                    f"{variable.name}; make it with shards=, after join, so that they share it"
                )

    def _publish(self, written: Path, step: int) -> None:
        self._ask("publish_checkpoint", self._generation, str(written), step)

    @contextlib.contextmanager
    def _others_waiting(self) -> Iterator[None]:
        """Has the other workers wait as long as the block takes, whatever their patience_s."""
        self._ask("keep", self._generation, self._rank, True)
        try:
            yield
        finally:
            # If the job has been restarted meanwhile, this worker's next call raises the error.
            with contextlib.suppress(WorkerLostError):
                self._ask("keep", self._generation, self._rank, False)

    def leave(self) -> None:
        """Ends this process's part in the job. REQUIRES: its variables are closed."""
        global _current
        self._has_left.set()
        if _current is self:
            _current = None

    def _beat(self) -> None:
        """Sends signs of life until this worker leaves. Errors are ignored: if the job has ended,
        this worker's other calls raise the error."""
        while not self._has_left.wait(BEAT_INTERVAL_S) and ray_cluster.library().is_initialized():
            with contextlib.suppress(Exception):
                self._ticket.actor.call.remote("beat", (self._generation, self._rank))

    def _folder(self) -> TrainingDirectory:
        if self._checkpoints is None:
            raise InvalidArgumentError("checkpoints: the job was begun without a folder for them")
        return self._checkpoints

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            called = self._ticket.actor.call.remote(method, arguments)
        except TypeError as error:  # Ray's error for unpicklable arguments
            name = "value" if method in _VALUE_METHODS else method
            raise InvalidArgumentError(
                f"{name} can't be sent ({error.__cause__ or error}); give numbers, arrays, or what "
                "else can be pickled"
            ) from error
        try:
            answer = wait_for(called)
        except ShardLostError as error:
            raise WorkerLostError(f"the process that began the job is gone: {error}") from error
        if answer.error is not None:
            raise answer.error
        return answer.value


def _first_that_differs(values: Sequence[Any]) -> int:
    """Returns the first worker whose value differs from worker 0's, or 0 if none does."""
    return next((rank for rank, each in enumerate(values) if each != values[0]), 0)


def join(ticket: JobTicket, rank: int) -> Worker:
    """Makes this process worker `rank` (from 0) of a job.

    A worker that joins again after a restart restarts the whole job: with empty variables that all
    workers must make again and restore. Calls of the earlier workers no longer reach anything.
    """
    global _current
    if not isinstance(ticket, JobTicket):
        raise InvalidArgumentError(f"ticket must be a Job's, got {type(ticket).__name__}")
    rank = checks.integer("rank", rank, at_least=0)
    if _current is not None:
        raise InvalidArgumentError(
            f"this process is worker {_current.rank} of a job already; it must leave() that first"
        )
    ray_cluster.join_or_start()
    _current = Worker(ticket, rank)
    return _current


def current_worker() -> Worker | None:
    """Returns the worker that this process is, or None if it has joined no job."""
    return _current
