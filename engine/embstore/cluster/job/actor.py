"""The state that a job's workers share: their variables' shards, and the whole checkpoints."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embstore.checkpoint.training.directory import TrainingDirectory
from embstore.cluster.ray.calls import Answer
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.server.servers import Servers
from embstore.cluster.server.shard_placement import OpenShard, ShardPlacement
from embstore.errors import EmbStoreError, InvalidArgumentError, WorkerLostError
from embstore.options import Tier
from embstore.table.shard import ShardSpec

__all__ = ["JobActor"]

_JOINED_WITHIN_S = 60.0
# Ray asks a process to end, and kills one that is stopped some seconds later.
_FREED_WITHIN_S = 30.0


@dataclasses.dataclass
class _SharedShard:
    """A shard that workers share. users: ranks of the workers that have it open."""

    spec: ShardSpec
    shard: OpenShard
    users: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class _SharedVariable:
    """A variable that workers share, until all that made it have closed it. Its shards are closed
    together, so that a worker that has opened some of them finds the others.

    shards: the open ones, by name. left: ranks of the workers that have closed a shard.
    """

    placement: ShardPlacement
    shards: dict[str, _SharedShard] = dataclasses.field(default_factory=dict)
    left: set[int] = dataclasses.field(default_factory=set)
    is_closing: bool = False

    def users(self) -> set[int]:
        return {rank for shared in self.shards.values() for rank in shared.users}


class JobActor:
    """The process that keeps a job's state. Workers come in generations: each starts with new
    servers and empty shards.

    Calls from an earlier generation are refused, so that they can't change anything. Methods answer
    with an `Answer`; any number of threads may call them.
    """

    def __init__(
        self, rules: PushRules, checkpoints: TrainingDirectory | None, silence_s: float
    ) -> None:
        self._rules = rules
        self._checkpoints = checkpoints
        self._silence_s = silence_s
        self._begun_at = time.monotonic()
        self._beats: dict[tuple[int, int], float] = {}  # times by generation and rank; no lock
        self._servers = Servers(rules, silence_s)
        # Held while shards are made and closed, and notified of both; taken before _changed.
        self._opening = threading.Condition()
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._generation = 0
        self._joined: set[int] = set()
        self._reports: dict[int, Any] = {}
        self._arrived: dict[int, dict[int, Any]] = {}  # each worker's value, by meeting and rank
        self._keeping: set[int] = set()  # ranks that save or restore a checkpoint
        self._returned: set[int] = set()
        # Guarded by _opening:
        self._variables: dict[str, _SharedVariable] = {}
        # Numbers of times that each worker has closed a variable, by the variable's name.
        self._closings: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def process_id(self) -> int:
        return os.getpid()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            return Answer(getattr(self, method)(*arguments))
        except EmbStoreError as error:
            return Answer(error=error)

    # --- Called by workers

    def join(self, rank: int) -> int:
        """Returns the generation that the worker belongs to. A rank that joins a second time starts
        a new generation: the worker was restarted, so the others are too.
        """
        if not 0 <= rank < self._rules.workers:
            raise InvalidArgumentError(
                f"rank must be from 0 to {self._rules.workers - 1}, got {rank}: the job was begun "
                f"for {self._rules.workers} workers"
            )
        with self._opening:
            if rank in self._joined:
                self._begin_generation()
            with self._changed:
                self._joined.add(rank)
                self.beat(self._generation, rank)
                return self._generation

    def report(self, generation: int, rank: int, value: Any) -> None:
        """Replaces the value that `take_reports` returns for this worker."""
        with self._changed:
            self._check(generation)
            self._reports[rank] = value

    def take_reports(self) -> dict[int, Any]:
        """Returns by rank the last value that each worker has reported since the previous call."""
        with self._changed:
            reports, self._reports = self._reports, {}
            return reports

    def beat(self, generation: int, rank: int) -> None:
        """Records a sign of life of the worker, without waiting for a lock."""
        self._beats[generation, rank] = time.monotonic()

    def keep(self, generation: int, rank: int, is_keeping: bool) -> None:
        """Records that the worker starts, or ends, saving or restoring a checkpoint. As long as it
        gives signs of life meanwhile, the others wait for it beyond patience_s.
        """
        with self._changed:
            self._check(generation)
            (self._keeping.add if is_keeping else self._keeping.discard)(rank)

    def shard(
        self,
        generation: int,
        rank: int,
        name: str,
        count: int,
        tiers: Sequence[Tier],
        spec: ShardSpec,
    ) -> OpenShard:
        """Returns the worker's access to a shard of the variable `name`; the first worker that asks
        makes the shard. Raises InvalidArgumentError if this worker has it open already.

        The nth variable of that name is the same for all workers: a worker that makes it again
        waits until all have made and closed the previous one.
        """
        with self._opening:
            self._wait_until_closed(generation, rank, name)
            variable = self._variables.get(name)
            if variable is None:
                placement = ShardPlacement(
                    name,
                    count,
                    tiers,
                    self._servers,
                    self._silence_s,
                    _FREED_WITHIN_S,
                    self._persisted_places(name, count),
                )
                variable = self._variables[name] = _SharedVariable(placement)
            shared = variable.shards.get(spec.name)
            if shared is None and variable.placement.count == count:
                shared = variable.shards[spec.name] = self._make_shard(name, variable, spec)
            others = ["shards"] if shared is None else _differences(shared.spec, spec)
            if shared is None or others:
                raise InvalidArgumentError(
                    f"{name}: worker {rank} makes it otherwise than another worker, with other "
                    f"{' and '.join(others)}; give all the same dim, initializer, optimizer, "
                    "options and shards"
                )
            if rank in shared.users:
                # Its push numbers would start again at 1, and the server would take the pushes for
                # resent ones.
                raise InvalidArgumentError(
                    f"{name}: worker {rank} has it already; close it first (or make it in a `with` "
                    "block, which closes it)"
                )
            shared.users.add(rank)
            return shared.shard

    def _wait_until_closed(self, generation: int, rank: int, name: str) -> None:
        deadline = time.monotonic() + self._rules.patience_s
        while True:
            self._check(generation)
            variable = self._variables.get(name)
            closings = self._closings[name]
            behind = {
                other for other in range(self._rules.workers) if closings[other] < closings[rank]
            }
            is_left = variable is not None and (variable.is_closing or rank in variable.left)
            if not is_left and not behind:
                return
            using = set() if variable is None else variable.users()
            if not using and variable is not None:
                behind |= set(range(self._rules.workers)) - variable.left
            with self._changed:
                returned = (using or behind) & self._returned
            if returned or not self._opening.wait(deadline - time.monotonic()):
                how_long = "and has returned" if returned else f"for {self._rules.patience_s:g} s"
                raise WorkerLostError(
                    f"{name}: worker {rank} has closed it and makes it anew; worker "
                    f"{min(returned or using or behind)} hasn't {'' if using else 'made and '}"
                    f"closed it {how_long}; every worker must make it as often"
                )

    def leave(self, generation: int, rank: int, name: str, shard: str) -> None:
        """Closes the variable when all workers that share its shards have left them.

        With asynchronous updates, a slow worker may make the variable after the others have trained
        it and left. So it stays open until all workers have left it, or the job ends.
        """
        with self._opening:
            self._check(generation)
            variable = self._variables.get(name)
            if variable is None or shard not in variable.shards:
                return
            users = variable.shards[shard].users
            users.discard(rank)
            variable.left.add(rank)
            is_awaited = len(variable.left) < self._rules.workers
            if variable.users() or (is_awaited and not self._rules.is_synchronous):
                return
            try:
                self._close(variable, last=shard)
            except BaseException:
                users.add(rank)  # leave may be called again
                raise
            del self._variables[name]
            self._closings[name].update(variable.left)
            self._opening.notify_all()

    def _close(self, variable: _SharedVariable, last: str) -> None:
        variable.is_closing = True
        for name in [*(name for name in variable.shards if name != last), last]:
            shard = variable.shards[name].shard
            check = partial(shard.actor.check_alive, self._silence_s)
            answer = shard.actor.call(shard.table, "close", (), {}, check)
            if answer.error is not None:
                raise answer.error
            del variable.shards[name]
            variable.placement.leave(shard)

    def meet(self, generation: int, rank: int, meeting: int, value: Any) -> list[Any]:
        """Waits for all workers, and returns their values, in the order of their ranks."""
        waited_since = time.monotonic()
        with self._changed:
            self._check(generation)
            arrived = self._arrived.setdefault(meeting, {})
            arrived[rank] = value
            self._changed.notify_all()
            while len(arrived) < self._rules.workers:
                absent = set(range(self._rules.workers)) - arrived.keys()
                if returned := self._returned & absent:
                    raise WorkerLostError(
                        f"worker {min(returned)} has returned, and comes to no meeting {meeting}"
                    )
                missing = min(absent)
                if missing in self._keeping:
                    waited_since = max(waited_since, self._beats.get((generation, missing), 0.0))
                left_s = waited_since + self._rules.patience_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                else:
                    raise WorkerLostError(
                        f"worker {missing} hasn't come to meeting {meeting} for "
                        f"{self._rules.patience_s:g} s"
                    )
                self._check(generation)
            # All workers have come to this meeting, so all have left the previous one.
            self._arrived.pop(meeting - 1, None)
            return [arrived[each] for each in range(self._rules.workers)]

    def publish_checkpoint(self, generation: int, written: str, step: int) -> None:
        """Publishes the folder `written` as the checkpoint of that step."""
        with self._changed:  # no generation begins meanwhile
            self._check(generation)
            if self._checkpoints is None:
                raise InvalidArgumentError(
                    "checkpoints: the job was begun without a folder for them"
                )
            self._checkpoints.publish(Path(written), step)

    # --- Called by the process that keeps the job

    def silences_s(self) -> list[float]:
        """Returns for each worker the seconds since its last sign of life. Workers that haven't
        joined yet are given _JOINED_WITHIN_S more."""
        now, generation = time.monotonic(), self._generation
        return [
            now - self._beats.get((generation, rank), self._begun_at + _JOINED_WITHIN_S)
            for rank in range(self._rules.workers)
        ]

    def note_returned(self, generation: int, rank: int) -> None:
        """Records that the worker's function has returned: calls that wait for it fail at once."""
        with self._changed:
            self._check(generation)
            self._returned.add(rank)
            self._changed.notify_all()
        self._servers.note_returned(rank)
        with self._opening:
            self._opening.notify_all()

    def begin_generation(self) -> int:
        """Starts a new generation, and returns its number."""
        with self._opening:
            self._begin_generation()
            return self._generation

    def _begin_generation(self) -> None:
        with self._changed:
            self._begun_at = time.monotonic()
            self._beats = {}
            self._generation += 1
            self._joined = set()
            self._arrived = {}
            self._keeping = set()
            self._returned = set()
            self._reports = {}
            self._changed.notify_all()
        for variable in self._variables.values():
            variable.placement.end_all()
        self._servers.end()
        self._variables = {}
        self._closings.clear()
        self._opening.notify_all()

    def _make_shard(self, name: str, variable: _SharedVariable, spec: ShardSpec) -> _SharedShard:
        try:
            return _SharedShard(spec, variable.placement.open(spec))
        except BaseException:
            variable.placement.end()
            if not variable.shards:
                del self._variables[name]
            raise

    def _persisted_places(self, variable: str, count: int) -> list[str]:
        """Returns the nodes on which the variable's shards persisted their rows."""
        newest = None if self._checkpoints is None else self._checkpoints.newest()
        pools = None if newest is None else newest.pool_checkpoint()
        places = [] if pools is None else pools.places.get(variable, [])
        return places if len(places) == count else []  # else restore reports the mismatch

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise WorkerLostError(
                "the job's workers were started again without this one; it must end"
            )


# Users' names of ShardSpec fields, if they differ from the fields' names.
_USER_VISIBLE_NAMES = {
    "default_values": "initial rows (an initializer without a seed may draw one for each worker: "
    "give it a seed, or call keras.utils.set_random_seed first)",
    "no_permission_value": "default_value_no_permission",
    "partition_count": "shards",
}


def _differences(one: ShardSpec, other: ShardSpec) -> list[str]:
    return [
        _USER_VISIBLE_NAMES.get(field.name, field.name.replace("_", " "))
        for field in dataclasses.fields(ShardSpec)
        if not np.array_equal(getattr(one, field.name), getattr(other, field.name))
    ]
