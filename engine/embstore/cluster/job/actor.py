"""What the workers of a job agree on: their variables' shards, and which checkpoints are whole."""

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
from embstore.cluster.server.placing import OpenShard, Placing
from embstore.cluster.server.servers import Servers
from embstore.errors import EmbStoreError, InvalidArgumentError, WorkerLostError
from embstore.options import Tier
from embstore.table.shard import ShardSpec

__all__ = ["JobActor"]

_JOINED_WITHIN_S = 60.0
# Ray asks a process to end, and kills one that is stopped some seconds later.
_FREED_WITHIN_S = 30.0


@dataclasses.dataclass
class _SharedShard:
    """users: ranks of the workers that have it open."""

    spec: ShardSpec
    shard: OpenShard
    users: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class _SharedVariable:
    """One that was made, until all that made it have closed it: shards are closed together, so that
    a worker that has come to some of them finds the others.

    shards: those that are open, by name. left: ranks that have closed one.
    """

    placing: Placing
    shards: dict[str, _SharedShard] = dataclasses.field(default_factory=dict)
    left: set[int] = dataclasses.field(default_factory=set)
    is_closing: bool = False

    def users(self) -> set[int]:
        return {rank for shared in self.shards.values() for rank in shared.users}


class JobActor:
    """One generation of workers follows another: each begins with new servers and empty shards.

    Whoever belongs to an older one is refused, so what it still does reaches nothing that counts.
    Methods answer with an `Answer`; any number of threads may call them.
    """

    def __init__(
        self, rules: PushRules, checkpoints: TrainingDirectory | None, silence_s: float
    ) -> None:
        self._rules = rules
        self._checkpoints = checkpoints
        self._silence_s = silence_s
        self._begun_at = time.monotonic()
        self._beats: dict[tuple[int, int], float] = {}  # when, by generation and rank; no lock
        self._servers = Servers(rules, silence_s)
        # Held while shards are made and closed, and told of both; taken before _changed.
        self._opening = threading.Condition()
        self._changed = threading.Condition()
        # Guarded by it:
        self._generation = 0
        self._joined: set[int] = set()
        self._news: dict[int, Any] = {}
        self._arrived: dict[int, dict[int, Any]] = {}  # by meeting and rank, what each brought
        self._keeping: set[int] = set()  # ranks that are at a checkpoint
        self._returned: set[int] = set()
        # Guarded by _opening:
        self._variables: dict[str, _SharedVariable] = {}
        # How often each worker has closed a variable, by its name.
        self._closings: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def process_id(self) -> int:
        return os.getpid()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            return Answer(getattr(self, method)(*arguments))
        except EmbStoreError as error:
            return Answer(error=error)

    # --- By workers

    def join(self, rank: int) -> int:
        """The generation that the worker belongs to. One that comes again begins a new one: it was
        started anew, and so are the others.
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

    def tell(self, generation: int, rank: int, news: Any) -> None:
        """What `news` has from now on of the worker."""
        with self._changed:
            self._check(generation)
            self._news[rank] = news

    def news(self) -> dict[int, Any]:
        """What workers have told since this was asked before, the last of each, by rank."""
        with self._changed:
            news, self._news = self._news, {}
            return news

    def beat(self, generation: int, rank: int) -> None:
        """The worker lives. Waits for nothing."""
        self._beats[generation, rank] = time.monotonic()

    def keep(self, generation: int, rank: int, is_keeping: bool) -> None:
        """The worker makes a checkpoint, or restores one, which takes as long as it takes: as long
        as it gives signs of life the others' patience doesn't begin.
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
        """Of the variable `name`; made where no worker has asked for it yet. InvalidArgumentError
        where this one has it open.

        What a worker makes for the nth time is what the others make for the nth time: it waits
        until all of them have made and closed what came before.
        """
        with self._opening:
            self._wait_until_closed(generation, rank, name)
            variable = self._variables.get(name)
            if variable is None:
                placing = Placing(
                    name,
                    count,
                    tiers,
                    self._servers,
                    self._silence_s,
                    _FREED_WITHIN_S,
                    self._places(name, count),
                )
                variable = self._variables[name] = _SharedVariable(placing)
            shared = variable.shards.get(spec.name)
            if shared is None and variable.placing.count == count:
                shared = variable.shards[spec.name] = self._made(name, variable, spec)
            others = ["shards"] if shared is None else _differences(shared.spec, spec)
            if shared is None or others:
                raise InvalidArgumentError(
                    f"{name}: worker {rank} makes it otherwise than another worker, with other "
                    f"{' and '.join(others)}; give all the same dim, initializer, optimizer, "
                    "options and shards"
                )
            if rank in shared.users:
                # It would number its pushes anew, and the server would take them for resent ones.
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
        """Closes the variable when all that share its shards have left them.

        Where updates are asynchronous, a slow worker may make it when the others have trained it
        and left: it stays open for all workers, at most until the job ends.
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
                users.add(rank)  # it may be closed again
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
            variable.placing.leave(shard)

    def meet(self, generation: int, rank: int, meeting: int, brought: Any) -> list[Any]:
        """What every worker brought, in their order; returns when all are there."""
        waited_since = time.monotonic()
        with self._changed:
            self._check(generation)
            arrived = self._arrived.setdefault(meeting, {})
            arrived[rank] = brought
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
            # All have come here, so all have left the one before.
            self._arrived.pop(meeting - 1, None)
            return [arrived[each] for each in range(self._rules.workers)]

    def publish_checkpoint(self, generation: int, written: str, step: int) -> None:
        """Names what lies in the folder `written`."""
        with self._changed:  # no generation begins meanwhile
            self._check(generation)
            if self._checkpoints is None:
                raise InvalidArgumentError(
                    "checkpoints: the job was begun without a folder for them"
                )
            self._checkpoints.publish(Path(written), step)

    # --- By whoever looks after them

    def silences_s(self) -> list[float]:
        """Of each worker, for how long it has given no sign of life; those that haven't joined yet
        have some time for that."""
        now, generation = time.monotonic(), self._generation
        return [
            now - self._beats.get((generation, rank), self._begun_at + _JOINED_WITHIN_S)
            for rank in range(self._rules.workers)
        ]

    def note_returned(self, generation: int, rank: int) -> None:
        """The worker's function is through: who waits for it waits in vain."""
        with self._changed:
            self._check(generation)
            self._returned.add(rank)
            self._changed.notify_all()
        self._servers.note_returned(rank)
        with self._opening:
            self._opening.notify_all()

    def begin_generation(self) -> int:
        """Returns its number."""
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
            self._news = {}
            self._changed.notify_all()
        for variable in self._variables.values():
            variable.placing.end_all()
        self._servers.end()
        self._variables = {}
        self._closings.clear()
        self._opening.notify_all()

    def _made(self, name: str, variable: _SharedVariable, spec: ShardSpec) -> _SharedShard:
        try:
            return _SharedShard(spec, variable.placing.open(spec))
        except BaseException:
            variable.placing.end()
            if not variable.shards:
                del self._variables[name]
            raise

    def _places(self, variable: str, count: int) -> list[str]:
        """Where the variable's shards have what they persisted."""
        newest = None if self._checkpoints is None else self._checkpoints.newest()
        pools = None if newest is None else newest.pool_checkpoint()
        places = [] if pools is None else pools.places.get(variable, [])
        return places if len(places) == count else []  # else its restore says what is wrong

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise WorkerLostError(
                "the job's workers were started again without this one; it must end"
            )


# What a user calls a field of a spec, where its name isn't that.
_CALLED = {
    "default_values": "initial rows (an initializer without a seed may draw one for each worker: "
    "give it a seed, or call keras.utils.set_random_seed first)",
    "no_permission_value": "default_value_no_permission",
    "partition_count": "shards",
}


def _differences(one: ShardSpec, other: ShardSpec) -> list[str]:
    return [
        _CALLED.get(field.name, field.name.replace("_", " "))
        for field in dataclasses.fields(ShardSpec)
        if not np.array_equal(getattr(one, field.name), getattr(other, field.name))
    ]
