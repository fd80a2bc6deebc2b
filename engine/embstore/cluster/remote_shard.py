"""A shard on another node, or in another process here: stands in for a `LocalShard`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore._several_shards import Later
from embstore._shard import (
    BegunShard,
    PersistedShard,
    SavedShard,
    SaveRequest,
    ShardRows,
    ShardSpec,
    ShardState,
)
from embstore.cluster import wire
from embstore.cluster.connections import Connections, ServerAddress
from embstore.cluster.exchange import Exchange
from embstore.cluster.ray_actor import RayActor
from embstore.cluster.shard_actor import Answer
from embstore.cluster.wire import Request, RequestHead
from embstore.errors import (
    ClosedError,
    EmbStoreError,
    ForkedError,
    InvalidArgumentError,
    ShardLostError,
)

__all__ = ["Membership", "RemoteShard"]

_ScalarT = TypeVar("_ScalarT", bound=np.generic)


@dataclass(frozen=True)
class Membership:
    """Of the worker that a shard is used by.

    worker: its number, of those that push to the shard.
    silence_s: a shard that gives no sign of life for so long is lost.
    leave: called when the variable is closed, in place of closing the shard, which others may use.
    pushes_alone: no other worker's part belongs to its pushes, which others may come between.
    """

    worker: int = 0
    silence_s: float = 30.0
    leave: Callable[[], None] | None = None
    pushes_alone: bool = False


class RemoteShard:
    """Rows go over sockets, everything else by calls of the actor.

    An error is that of the shard, and says where it happened. Once the shard is gone, every method
    raises ShardLostError.
    """

    def __init__(
        self,
        actor: RayActor,
        spec: ShardSpec,
        address: ServerAddress,
        membership: Membership,
        place: str = "",
    ) -> None:
        """place: as `OpenShard` has it."""
        self.place = place
        self._actor = actor
        self._name = spec.name
        self._dim = spec.dim
        self._membership = membership
        self._where = f"the shard {spec.name} on node {actor.node}"
        self._connections = Connections(address, self._where, membership.silence_s)
        self._made_in = _core.fork_generation()
        self._is_closed = False
        self._lost: str | None = None  # why
        self._one_push = threading.Lock()  # a worker's come one after the other
        self._lock = threading.Lock()
        self._pushes = 0  # so many were begun
        self._prepared: set[int] = set()

    @property
    def process_id(self) -> int:
        """On its node."""
        return self._actor.process_id

    # --- Rows

    def lookup(
        self,
        ids: NDArray[np.int64],
        train: bool,
        out: NDArray[np.float32] | None = None,
        occurrences: NDArray[np.uint32] | None = None,
    ) -> NDArray[np.float32]:
        return self.lookup_later(ids, train, out, occurrences).wait()

    def lookup_later(
        self,
        ids: NDArray[np.int64],
        train: bool,
        out: NDArray[np.float32] | None = None,
        occurrences: NDArray[np.uint32] | None = None,
        ahead: int = 0,
    ) -> Later[NDArray[np.float32]]:
        """The request is under way when this returns.

        ahead: the rows are read after so many more pushes of this worker's.
        """
        if out is None:
            out = np.empty((ids.size, self._dim), np.float32)
        rows = out
        kind = Request.LOOK_UP if train else Request.SERVE
        with self._lock:
            after = self._pushes + ahead if ahead else 0
        head = self._head(kind, ids, occurrences, after)
        exchange = self._request(head, ids, occurrences, out=rows)

        def wait() -> NDArray[np.float32]:
            self._wait(exchange)
            return rows

        return Later(wait, exchange.give_up)

    def apply_gradients(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[np.float32],
        global_step: int | None,
        occurrences: NDArray[np.uint32] | None = None,
    ) -> None:
        with self._one_push:
            head = self._head(Request.APPLY, ids, occurrences, self._begin_push())
            head = head._replace(global_step=_step(global_step))
            self._wait(self._request(head, ids, occurrences, grads))

    def prepare_apply(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[np.float32],
        occurrences: NDArray[np.uint32] | None = None,
    ) -> int:
        return self.prepare_later(ids, grads, occurrences).wait()

    def prepare_later(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[np.float32],
        occurrences: NDArray[np.uint32] | None = None,
    ) -> Later[int]:
        """The number is that of the push. No other may begin until it is committed or aborted.

        A shard that is nearly full holds one push at a time: two of different workers that took
        their shards in different orders would wait for each other.
        """
        begin = partial(self._begin_prepare, ids, grads, occurrences)
        return Later.in_turn(begin) if self._membership.pushes_alone else begin()

    def _begin_prepare(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[np.float32],
        occurrences: NDArray[np.uint32] | None,
    ) -> Later[int]:
        number = self._begin_push()
        head = self._head(Request.PREPARE, ids, occurrences, number)
        exchange = self._request(head, ids, occurrences, grads)

        def wait() -> int:
            self._wait(exchange)
            with self._lock:
                self._prepared.add(number)
            return number

        def give_up() -> None:
            exchange.give_up()
            with self._lock:
                self._prepared.add(number)  # perhaps
            self.abort_apply(number)

        return Later(wait, give_up)

    def commit_apply(self, number: int, global_step: int | None) -> None:
        self.commit_later(number, global_step).wait()

    def commit_later(self, number: int, global_step: int | None) -> Later[None]:
        with self._lock:
            self._prepared.discard(number)
        head = RequestHead(
            Request.COMMIT,
            worker=self._membership.worker,
            global_step=_step(global_step),
            push=number,
        )
        exchange = self._request(head)
        return Later(lambda: self._wait(exchange), exchange.give_up)

    def abort_apply(self, number: int) -> None:
        """One that wasn't prepared, or is committed, stays as it is."""
        with self._lock:
            if number not in self._prepared:
                return
            self._prepared.remove(number)
        head = RequestHead(Request.ABORT, worker=self._membership.worker, push=number)
        self._wait(self._request(head))

    # --- What rows say of themselves

    def lookup_tier(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        return _own(self._ask("lookup_tier", ids))

    def frequency(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return _own(self._ask("frequency", ids))

    def version(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return _own(self._ask("version", ids))

    def size(self) -> int:
        return int(self._ask("size"))

    def export(self, skip_damaged: bool = False) -> ShardRows:
        rows: ShardRows = self._ask("export", skip_damaged)
        return ShardRows(
            _own(rows.keys),
            _own(rows.values),
            _own(rows.frequencies),
            _own(rows.versions),
            [_own(slot) for slot in rows.slots],
        )

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._ask("stats")
        return stats

    def drain(self) -> None:
        self._ask("drain")

    def find_damaged(self) -> NDArray[np.int64]:
        return _own(self._ask("find_damaged"))

    def drop(self, ids: NDArray[np.int64]) -> int:
        return int(self._ask("drop", ids))

    # --- What a shard keeps once

    def apply_count(self) -> int:
        return int(self._ask("apply_count"))

    def advance_apply_count(self, at_least: int) -> None:
        self._ask("advance_apply_count", at_least)

    def learning_rate(self) -> float:
        return float(self._ask("learning_rate"))

    def set_learning_rate(self, learning_rate: float) -> None:
        self._ask("set_learning_rate", learning_rate)

    def sketch_shape(self) -> tuple[int, int, int] | None:
        shape: tuple[int, int, int] | None = self._ask("sketch_shape")
        return shape

    # --- Checkpoints, whose files the shard reads and writes itself

    def save(self, request: SaveRequest, *, waiting_keys: bool, skip_damaged: bool) -> SavedShard:
        saved: SavedShard = self._ask(
            "save", request, waiting_keys=waiting_keys, skip_damaged=skip_damaged
        )
        return saved

    def save_succeeded(self, next_span: int) -> None:
        self._ask("save_succeeded", next_span)

    def restore(
        self,
        chain: Sequence[Sequence[str]],
        *,
        partition: int,
        partition_count: int,
        state: ShardState,
        waiting_keys: bool,
    ) -> None:
        self._ask(
            "restore",
            chain,
            partition=partition,
            partition_count=partition_count,
            state=state,
            waiting_keys=waiting_keys,
        )

    def kept_rows(self) -> list[bytes]:
        ids: list[bytes] = self._ask("kept_rows")
        return ids

    def take_over_kept_rows(self, checkpoint_id: bytes | None) -> None:
        self._ask("take_over_kept_rows", checkpoint_id)

    def keep_rows(self, checkpoint_id: bytes) -> None:
        self._ask("keep_rows", checkpoint_id)

    def drop_older_rows(self) -> None:
        self._ask("drop_older_rows")

    def begin_persist(
        self,
        path: str,
        *,
        checkpoint_id: bytes,
        partition: int,
        partition_count: int,
        waiting_keys: bool,
    ) -> BegunShard:
        begun: BegunShard = self._ask(
            "begin_persist",
            path,
            checkpoint_id=checkpoint_id,
            partition=partition,
            partition_count=partition_count,
            waiting_keys=waiting_keys,
        )
        return begun

    def finish_persist(self, number: int, checkpoint_id: bytes) -> None:
        self._ask("finish_persist", number, checkpoint_id)

    def drop_persisted(self, number: int) -> None:
        self._ask("drop_persisted", number)

    def persisted(self) -> list[PersistedShard]:
        persisted: list[PersistedShard] = self._ask("persisted")
        return persisted

    def should_persist(self) -> bool:
        return bool(self._ask("should_persist"))

    def is_pool_short(self) -> bool:
        return bool(self._ask("is_pool_short"))

    def awaits_restore(self) -> bool:
        return bool(self._ask("awaits_restore"))

    def note_listed_at(self, directory: str) -> None:
        self._ask("note_listed_at", directory)

    def listed_at(self) -> str | None:
        directory: str | None = self._ask("listed_at")
        return directory

    def discard_persisted(self) -> None:
        self._ask("discard_persisted")

    def restore_persisted(
        self,
        number: int,
        chain: Sequence[Sequence[str]],
        *,
        partition: int,
        partition_count: int,
        state: ShardState,
        waiting_keys: bool,
    ) -> None:
        self._ask(
            "restore_persisted",
            number,
            chain,
            partition=partition,
            partition_count=partition_count,
            state=state,
            waiting_keys=waiting_keys,
        )

    def close(self) -> None:
        """Ends the actor too, unless its shard can't be closed yet, or other workers use it."""
        if self._is_closed or _core.fork_generation() != self._made_in:
            return
        leave = self._membership.leave
        if self._lost is None:  # else there is nothing to close, and that was said
            try:
                if leave is None:
                    self._ask("close")
                else:
                    leave()
            except ShardLostError:
                self._end()
                raise
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._connections.close()
        if self._membership.leave is None:
            self._actor.end()

    # --- How it is asked

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._check_usable()
        try:
            answer: Answer = self._actor.call(method, arguments, options, self._ping)
        except ShardLostError as error:
            raise self._lose(str(error)) from error
        if answer.error is not None:
            raise _told_where(answer.error, self._where) from None
        return answer.value

    def _ping(self) -> None:
        self._wait(self._request(RequestHead(Request.PING)))

    def _head(
        self,
        kind: Request,
        ids: NDArray[np.int64],
        occurrences: NDArray[np.uint32] | None,
        push: int = 0,
    ) -> RequestHead:
        needed = wire.batch_bytes(ids.size, self._dim)
        if needed > wire.MOST_BYTES:
            raise InvalidArgumentError(
                f"ids: {ids.size} ids of dim {self._dim} are {needed} bytes, and {self._where} "
                f"takes {wire.MOST_BYTES} at once; give smaller batches, or more shards"
            )
        worker = self._membership.worker
        return RequestHead(kind, occurrences is not None, worker, ids.size, push=push)

    def _begin_push(self) -> int:
        with self._lock:
            self._pushes += 1
            return self._pushes

    def _request(
        self,
        head: RequestHead,
        *parts: NDArray[Any] | None,
        out: NDArray[np.float32] | None = None,
    ) -> Exchange:
        self._check_usable()
        return Exchange(self._connections, head, *parts, out=out)

    def _wait(self, exchange: Exchange) -> None:
        try:
            exchange.wait()
        except EmbStoreError:
            raise
        except (OSError, EOFError) as error:
            raise self._lose(_why(error)) from error

    def _check_usable(self) -> None:
        if _core.fork_generation() != self._made_in:
            raise ForkedError(
                f"{self._name}: belongs to the process that this one was forked from; open it in "
                "the worker, or start workers by spawn"
            )
        if self._is_closed:
            raise ClosedError(f"{self._name} is closed")
        if self._lost is not None:
            raise self._lose(self._lost)

    def _lose(self, why: str) -> ShardLostError:
        self._lost = self._lost or why
        return ShardLostError(
            f"{self._where} can't be reached any more: {self._lost}. What it learnt since the last "
            "save is lost: close the variable, make it anew, and restore the last save with "
            "embstore.restore()"
        )


def _step(global_step: int | None) -> int:
    return -1 if global_step is None else global_step


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _told_where(error: EmbStoreError, where: str) -> EmbStoreError:
    keys = getattr(error, "keys", [])
    return wire.error_named(type(error).__name__, str(error), keys, where)


def _own(array: NDArray[_ScalarT]) -> NDArray[_ScalarT]:
    """What Ray gives lies in its own memory, and can't be written to."""
    return array if array.flags.writeable else array.copy()
