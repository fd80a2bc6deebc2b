"""Look-ups and updates of shards in other processes. Each server gets one request for all variables
that have a shard there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import EmbStoreError, WorkerLostError
from embstore.table.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from embstore.cluster.rows.remote_shard import RemoteShard
    from embstore.cluster.rows.server_link import ServerLink

__all__ = [
    "LookUpPart",
    "PendingReply",
    "Refusals",
    "RemoteLookup",
    "UniqueKeys",
    "UpdatePart",
    "push_together",
    "send_lookups",
    "slices_of_one_array",
]

_PartT = TypeVar("_PartT", "LookUpPart", "UpdatePart")

Refusals: TypeAlias = "list[EmbStoreError | None]"  # each part's error; None: it was done


class PendingReply:
    """A request to a server that is under way. The caller either calls wait() once, which returns
    each part's error or None, or give_up().
    """

    def __init__(
        self, wait: Callable[[], Refusals], give_up: Callable[[], None] = lambda: None
    ) -> None:
        self.wait = wait
        self.give_up = give_up


class LookUpPart(NamedTuple):
    """The part of a look-up that belongs to one shard.

    out: float32 (n, dim), gets the rows.
    occurrences: as in `LocalShard.lookup`.
    after_push: the rows are read after this worker's push of that number; 0: at once.
    """

    shard: RemoteShard
    ids: NDArray[np.int64]
    out: NDArray[np.float32]
    occurrences: NDArray[np.uint32] | None = None
    after_push: int = 0


class UpdatePart(NamedTuple):
    """The part of a gradient batch that belongs to one shard. number: the push's."""

    shard: RemoteShard
    number: int
    ids: NDArray[np.int64]
    grads: NDArray[np.float32]
    occurrences: NDArray[np.uint32] | None


class UniqueKeys:
    """The distinct keys of a batch, grouped by shard.

    keys (n,): each shard's are in the order of their first occurrence; occurrences (n,): how often
    each key occurs; begins: where each shard's keys begin in `keys`, and the end.
    """

    def __init__(self, ids: NDArray[np.int64], shards: int) -> None:
        unique = _core.UniqueIds(ids, shards)
        self.keys = unique.keys()
        self.occurrences = unique.occurrences()
        self.begins = unique.begins()
        self.spread = unique.spread
        self.sum = unique.sum


class RemoteLookup:
    """A look-up of one variable at remote shards.

    unique: the distinct keys of its ids: each key is sent once, and its row returned once. None:
        every id is sent; only for a look-up that isn't for training.
    ahead: number of further pushes that the shards apply before they read the rows.
    """

    def __init__(
        self,
        shards: Sequence[RemoteShard],
        dim: int,
        ids: NDArray[np.int64],
        unique: UniqueKeys | None,
        *,
        ahead: int = 0,
    ) -> None:
        self.unique = unique
        self._order: NDArray[np.int64] | None = None  # positions of _keys in ids; None: the same
        occurrences: NDArray[np.uint32] | None = None
        keys, begins = ids, [0, ids.size]
        if unique is not None:
            keys, occurrences, begins = unique.keys, unique.occurrences, unique.begins
        elif len(shards) > 1:
            self._order, begins = _core.keys_by_partition(ids, len(shards))
            keys = ids[self._order]
        self._shards = shards
        self._dim = dim
        self._keys, self._occurrences, self._begins = keys, occurrences, begins
        self._after_pushes = (
            [shard.pushes + ahead for shard in shards] if ahead else [0] * len(shards)
        )
        self._rows = np.empty((0, dim), np.float32)  # the keys' rows, once requested
        self._lock = threading.Lock()
        self._replies: list[_PartReply] | None = None  # guarded by _lock

    @property
    def float_count(self) -> int:
        """The number of floats in the rows that the shards return."""
        return self._keys.size * self._dim

    def parts(self, buffer: NDArray[np.float32]) -> list[LookUpPart]:
        """Returns the look-up's part for each shard. buffer: (floats,), gets the rows."""
        self._rows = buffer.reshape(-1, self._dim)
        counts = self._occurrences
        return [
            LookUpPart(
                shard,
                self._keys[begin:end],
                self._rows[begin:end],
                None if counts is None else counts[begin:end],
                after_push,
            )
            for shard, after_push, (begin, end) in zip(
                self._shards, self._after_pushes, pairwise(self._begins), strict=True
            )
        ]

    def write_to(self, rows: NDArray[np.float32]) -> None:
        """Waits for the rows and writes them to `rows`, float32 (n, dim), in the order of the ids.
        Raises the first error.
        """
        with self._lock:
            replies = self._replies
        if replies is not None and any(reply.shared.is_held_up() for reply in replies):
            self.give_up()
            with self._lock:
                self._replies = replies = None
        if replies is None:
            send_lookups([self])
        error = self._first_error()
        if isinstance(error, WorkerLostError) and any(self._after_pushes):
            # The program paused for longer than the server waits for a push. The push is over now.
            with self._lock:
                self._after_pushes = [0] * len(self._shards)
                self._replies = None
            send_lookups([self])
            error = self._first_error()
        if error is not None:
            raise error
        if self.unique is not None:
            self.unique.spread(self._rows, rows)
        elif self._order is not None:
            rows[self._order] = self._rows
        else:
            rows[:] = self._rows

    def _first_error(self) -> EmbStoreError | None:
        """Waits for the rows. Returns the first error other than WorkerLostError at once. A
        WorkerLostError, the error of a push that didn't come, is returned once all parts have
        answered.
        """
        error: EmbStoreError | None = None
        for reply in self._replies or ():
            error = reply.wait() or error
            if error is not None and not isinstance(error, WorkerLostError):
                break
        return error

    def give_up(self) -> None:
        with self._lock:
            replies, self._replies = self._replies, []
        for reply in replies or ():
            reply.give_up()


def send_lookups(look_ups: Sequence[RemoteLookup]) -> None:
    """Sends the requests of look-ups, all for training or none, that have not been sent yet."""
    locked: list[RemoteLookup] = []
    try:
        for look_up in look_ups:
            look_up._lock.acquire()
            locked.append(look_up)
        new = [look_up for look_up in locked if look_up._replies is None]
        buffers = slices_of_one_array([look_up.float_count for look_up in new])
        parts = [look_up.parts(buffer) for look_up, buffer in zip(new, buffers, strict=True)]
        reply_of_part: dict[int, _PartReply] = {}
        for server, server_parts in _by_server(
            part for lookup_parts in parts for part in lookup_parts
        ):
            reply = server.look_up(server_parts, new[0].unique is not None)
            shared = _SharedReply(reply, server_parts)
            reply_of_part |= {
                id(part): _PartReply(shared, i) for i, part in enumerate(server_parts)
            }
        for look_up, lookup_parts in zip(new, parts, strict=True):
            look_up._replies = [reply_of_part[id(part)] for part in lookup_parts]
    finally:
        for look_up in locked:
            look_up._lock.release()


def slices_of_one_array(sizes: Sequence[int]) -> list[NDArray[np.float32]]:
    """Returns float32 arrays of these sizes that are slices of one array: the C library keeps the
    memory of one large array for the next step, but returns that of many small arrays to the
    system.
    """
    ends = [0, *accumulate(sizes)]
    buffer = np.empty(ends[-1], np.float32)
    return [buffer[begin:end] for begin, end in pairwise(ends)]


class _SharedReply:
    """The answer to a request with parts of several look-ups; each part waits or gives up."""

    def __init__(self, reply: PendingReply, parts: Sequence[LookUpPart]) -> None:
        self._reply = reply
        self._ahead = [part for part in parts if part.after_push]
        self._lock = threading.Lock()
        self._waiting = len(parts)
        self._refusals: Refusals | None = None

    def is_held_up(self) -> bool:
        """Returns whether the answer waits for a push that hasn't begun. The push may be another
        table's, which the program may never train.
        """
        return any(part.after_push > part.shard.pushes for part in self._ahead)

    def refusal(self, part: int) -> EmbStoreError | None:
        with self._lock:
            self._waiting -= 1
            if self._refusals is None:
                self._refusals = self._reply.wait()
            return self._refusals[part]

    def give_up(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0 and self._refusals is None:
                self._reply.give_up()


class _PartReply(NamedTuple):
    shared: _SharedReply
    part: int

    def wait(self) -> EmbStoreError | None:
        return self.shared.refusal(self.part)

    def give_up(self) -> None:
        self.shared.give_up()


def push_together(batches: Sequence[Sequence[UpdatePart]], global_step: int | None) -> Refusals:
    """Applies one batch for each of several variables: all batches, or none. Returns each batch's
    error or None.

    A two-phase commit: the first request to each server brings the parts of all batches, and the
    second, sent once all shards can apply them, commits. If one server has all parts, the first
    request does both.
    """
    parts = [part for batch_parts in batches for part in batch_parts]
    by_server = _by_server(parts)
    if len(by_server) == 1 and by_server[0][0].fit_one_request(parts):
        errors = _ask_all_servers(
            parts, lambda server, server_parts: server.apply(server_parts, global_step)
        )
    else:
        errors = _prepare_and_commit(parts, by_server, global_step)
    return [
        next((errors[id(part)] for part in batch_parts if id(part) in errors), None)
        for batch_parts in batches
    ]


_ErrorsByPart: TypeAlias = "dict[int, EmbStoreError]"  # by the part's id()


def _prepare_and_commit(
    parts: Sequence[UpdatePart],
    by_server: Sequence[tuple[ServerLink, Sequence[UpdatePart]]],
    global_step: int | None,
) -> _ErrorsByPart:
    """Prepares the parts, then commits or aborts them. If it is interrupted, either all servers
    have committed, or all have aborted.
    """
    is_committing = False
    try:
        errors = _prepare(parts)
        if not errors:
            with uninterrupted():
                is_committing = True
                # Uninterrupted, as the next push would make a server drop a commit not read yet.
                return _ask_all_servers(
                    parts, lambda server, server_parts: server.commit(server_parts, global_step)
                )
    except BaseException:
        if not is_committing:
            _abort(by_server)
        raise
    _abort(by_server)
    return errors


def _abort(by_server: Sequence[tuple[ServerLink, Sequence[UpdatePart]]]) -> None:
    """Aborts the parts. Ignores errors: an abort fails only if the shard is gone."""
    for abort in [server.abort(server_parts) for server, server_parts in by_server]:
        abort.wait()


def _prepare(parts: Sequence[UpdatePart]) -> _ErrorsByPart:
    """Prepares the parts; returns the errors. If it is interrupted, nothing is left prepared."""
    errors: _ErrorsByPart = {}
    begun: list[tuple[ServerLink, list[UpdatePart], PendingReply]] = []
    try:
        for server, server_parts in sorted(
            _by_server(parts), key=lambda each: each[0].prepare_order
        ):
            begun.append((server, server_parts, server.prepare(server_parts)))
            if server.prepares_in_turn:
                errors |= _errors_of(*begun[-1][1:])
        for server, server_parts, reply in begun:
            if not server.prepares_in_turn:
                errors |= _errors_of(server_parts, reply)
    except BaseException:
        for _, _, reply in begun:
            reply.give_up()
        for server, server_parts, _ in begun:
            server.abort(server_parts).wait()
        raise
    return errors


def _ask_all_servers(
    parts: Sequence[UpdatePart],
    ask: Callable[[ServerLink, Sequence[UpdatePart]], PendingReply],
) -> _ErrorsByPart:
    """Calls `ask` for every server, then waits for all, so that servers work at the same time."""
    replies = [
        (server_parts, ask(server, server_parts)) for server, server_parts in _by_server(parts)
    ]
    errors: _ErrorsByPart = {}
    try:
        for server_parts, reply in replies:
            errors |= _errors_of(server_parts, reply)
    except BaseException:
        for _, reply in replies:
            reply.give_up()
        raise
    return errors


def _errors_of(parts: Sequence[UpdatePart], reply: PendingReply) -> _ErrorsByPart:
    answered = zip(parts, reply.wait(), strict=True)
    return {id(part): refusal for part, refusal in answered if refusal is not None}


def _by_server(parts: Iterable[_PartT]) -> list[tuple[ServerLink, list[_PartT]]]:
    grouped: dict[ServerLink, list[_PartT]] = {}
    for part in parts:
        grouped.setdefault(part.shard.server, []).append(part)
    return list(grouped.items())
