"""Look-ups and updates of shards in other processes. Each server gets one request for all variables
that have a shard there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.errors import EmbStoreError, WorkerLostError
from embstore.table.uninterrupted import uninterrupted

__all__ = [
    "LookUpPart",
    "PendingReply",
    "Refusals",
    "RemoteLookup",
    "RemoteShardProtocol",
    "Server",
    "UniqueKeys",
    "Update",
    "push_together",
    "send_lookups",
    "slices_of_one_array",
]

_T = TypeVar("_T")
_PartT = TypeVar("_PartT", "LookUpPart", "Update")

Refusals: TypeAlias = "list[EmbStoreError | None]"  # each part's error; None: it was done


class PendingReply(Generic[_T]):
    """A request under way. The caller either calls wait() once, for the answer, or give_up()."""

    def __init__(self, wait: Callable[[], _T], give_up: Callable[[], None] = lambda: None) -> None:
        self.wait = wait
        self.give_up = give_up


class RemoteShardProtocol(Protocol):
    """A shard at a server. This module's functions send its batches."""

    @property
    def server(self) -> Server: ...

    @property
    def pushes(self) -> int:
        """The number of pushes that were begun."""
        ...

    def check_can_send(self, ids: int) -> None:
        """Raises an EmbStoreError if a push of `ids` ids must not be sent: the shard is closed or
        lost, or there are too many ids.
        """
        ...

    def begin_push(self) -> int:
        """Begins a push and returns its number. No other push to this shard may begin until it is
        over.
        """
        ...


class LookUpPart(NamedTuple):
    """The part of a look-up that belongs to one shard.

    out: float32 (n, dim), gets the rows.
    occurrences: as in `LocalShard.lookup`.
    after: the rows are read after this worker's push of that number; 0: at once.
    """

    shard: RemoteShardProtocol
    ids: NDArray[np.int64]
    out: NDArray[np.float32]
    occurrences: NDArray[np.uint32] | None = None
    after: int = 0


class Update(NamedTuple):
    """The part of a gradient batch that belongs to one shard. number: the push's."""

    shard: RemoteShardProtocol
    number: int
    ids: NDArray[np.int64]
    grads: NDArray[np.float32]
    occurrences: NDArray[np.uint32] | None


class Server(Protocol):
    """A server, which holds shards of any number of variables, at most one of each.

    Its methods send a request and return; the result's wait() returns each part's error or None. If
    the server is gone, every part has an error.

    order: all workers prepare at servers in this order.
    prepares_in_turn: pushes must be prepared at one server after the other, in `order`. A nearly
        full shard holds one push at a time, and other workers' pushes may come in between: two
        pushes that took their shards in different orders would wait for each other.
    """

    @property
    def order(self) -> int: ...
    @property
    def prepares_in_turn(self) -> bool: ...

    def look_up(self, parts: Sequence[LookUpPart], train: bool) -> PendingReply[Refusals]: ...

    def fit_one_request(self, parts: Sequence[Update]) -> bool:
        """Returns whether one request has room for all parts."""
        ...

    def apply(self, parts: Sequence[Update], global_step: int | None) -> PendingReply[Refusals]:
        """Applies all parts or none. REQUIRES: one request has room for them."""
        ...

    def prepare(self, parts: Sequence[Update]) -> PendingReply[Refusals]:
        """Does the steps of an apply that may fail; no row changes."""
        ...

    def commit(self, parts: Sequence[Update], global_step: int | None) -> PendingReply[Refusals]:
        """Applies prepared parts."""
        ...

    def abort(self, parts: Sequence[Update]) -> PendingReply[Refusals]:
        """Gives prepared parts up. Parts that were committed or given up before are left alone."""
        ...


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
        shards: Sequence[RemoteShardProtocol],
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
        self._afters = [shard.pushes + ahead for shard in shards] if ahead else [0] * len(shards)
        self._found = np.empty((0, dim), np.float32)  # the keys' rows, once requested
        self._lock = threading.Lock()
        self._asked: list[_Answer] | None = None  # guarded by _lock

    @property
    def floats(self) -> int:
        """The number of floats in the rows that the shards return."""
        return self._keys.size * self._dim

    def parts(self, room: NDArray[np.float32]) -> list[LookUpPart]:
        """Returns the look-up's part for each shard. room: (floats,), gets the rows."""
        self._found = room.reshape(-1, self._dim)
        counts = self._occurrences
        return [
            LookUpPart(
                shard,
                self._keys[begin:end],
                self._found[begin:end],
                None if counts is None else counts[begin:end],
                after,
            )
            for shard, after, (begin, end) in zip(
                self._shards, self._afters, pairwise(self._begins), strict=True
            )
        ]

    def write_to(self, rows: NDArray[np.float32]) -> None:
        """Waits for the rows and writes them to `rows`, float32 (n, dim), in the order of the ids.
        Raises the first error.
        """
        with self._lock:
            asked = self._asked
        if asked is not None and any(answer.shared.is_held_up() for answer in asked):
            self.give_up()
            with self._lock:
                self._asked = asked = None
        if asked is None:
            send_lookups([self])
        refused = self._refused()
        if isinstance(refused, WorkerLostError) and any(self._afters):
            # The program paused for longer than the server waits for a push. The push is over now.
            with self._lock:
                self._afters = [0] * len(self._shards)
                self._asked = None
            send_lookups([self])
            refused = self._refused()
        if refused is not None:
            raise refused
        if self.unique is not None:
            self.unique.spread(self._found, rows)
        elif self._order is not None:
            rows[self._order] = self._found
        else:
            rows[:] = self._found

    def _refused(self) -> EmbStoreError | None:
        """Waits for the rows. Returns the first error other than WorkerLostError at once. A
        WorkerLostError, the error of a push that didn't come, is returned once all parts have
        answered.
        """
        refused: EmbStoreError | None = None
        for answer in self._asked or ():
            refused = answer.wait() or refused
            if refused is not None and not isinstance(refused, WorkerLostError):
                break
        return refused

    def give_up(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        for answer in asked or ():
            answer.give_up()


def send_lookups(look_ups: Sequence[RemoteLookup]) -> None:
    """Sends the requests of look-ups, all for training or none, that have not been sent yet."""
    asking: list[RemoteLookup] = []
    try:
        for look_up in look_ups:
            look_up._lock.acquire()
            asking.append(look_up)
        new = [look_up for look_up in asking if look_up._asked is None]
        rooms = slices_of_one_array([look_up.floats for look_up in new])
        parts = [look_up.parts(room) for look_up, room in zip(new, rooms, strict=True)]
        of_part: dict[int, _Answer] = {}
        for server, of_server in _by_server(part for of_one in parts for part in of_one):
            later = server.look_up(of_server, new[0].unique is not None)
            shared = _SharedAnswer(later, of_server)
            of_part |= {id(part): _Answer(shared, i) for i, part in enumerate(of_server)}
        for look_up, of_one in zip(new, parts, strict=True):
            look_up._asked = [of_part[id(part)] for part in of_one]
    finally:
        for look_up in asking:
            look_up._lock.release()


def slices_of_one_array(sizes: Sequence[int]) -> list[NDArray[np.float32]]:
    """Returns float32 arrays of these sizes that are slices of one array: the C library keeps the
    memory of one large array for the next step, but returns that of many small arrays to the
    system.
    """
    ends = [0, *accumulate(sizes)]
    room = np.empty(ends[-1], np.float32)
    return [room[begin:end] for begin, end in pairwise(ends)]


class _SharedAnswer:
    """The answer to a request with parts of several look-ups; each part waits or gives up."""

    def __init__(self, later: PendingReply[Refusals], parts: Sequence[LookUpPart]) -> None:
        self._later = later
        self._ahead = [part for part in parts if part.after]
        self._lock = threading.Lock()
        self._waiting = len(parts)
        self._refusals: Refusals | None = None

    def is_held_up(self) -> bool:
        """Returns whether the answer waits for a push that hasn't begun. The push may be another
        table's, which the program may never train.
        """
        return any(part.after > part.shard.pushes for part in self._ahead)

    def refusal(self, part: int) -> EmbStoreError | None:
        with self._lock:
            self._waiting -= 1
            if self._refusals is None:
                self._refusals = self._later.wait()
            return self._refusals[part]

    def give_up(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0 and self._refusals is None:
                self._later.give_up()


class _Answer(NamedTuple):
    shared: _SharedAnswer
    part: int

    def wait(self) -> EmbStoreError | None:
        return self.shared.refusal(self.part)

    def give_up(self) -> None:
        self.shared.give_up()


def push_together(batches: Sequence[Sequence[Update]], global_step: int | None) -> Refusals:
    """Applies one batch for each of several variables: all batches, or none. Returns each batch's
    error or None.

    A two-phase commit: the first request to each server brings the parts of all batches, and the
    second, sent once all shards can apply them, commits. If one server has all parts, the first
    request does both.
    """
    parts = [part for of_batch in batches for part in of_batch]
    by_server = _by_server(parts)
    if len(by_server) == 1 and by_server[0][0].fit_one_request(parts):
        refused = _ask_all_servers(parts, lambda server, of_one: server.apply(of_one, global_step))
    else:
        refused = _prepare_and_commit(parts, by_server, global_step)
    return [
        next((refused[id(part)] for part in of_batch if id(part) in refused), None)
        for of_batch in batches
    ]


_Refused: TypeAlias = "dict[int, EmbStoreError]"  # by the part's id()


def _prepare_and_commit(
    parts: Sequence[Update],
    by_server: Sequence[tuple[Server, Sequence[Update]]],
    global_step: int | None,
) -> _Refused:
    """Prepares the parts, then commits or aborts them. If it is interrupted, either all servers
    have committed, or all have aborted.
    """
    is_committing = False
    try:
        refused = _prepare(parts)
        if not refused:
            with uninterrupted():
                is_committing = True
                # Uninterrupted, as the next push would make a server drop a commit not read yet.
                return _ask_all_servers(
                    parts, lambda server, of_one: server.commit(of_one, global_step)
                )
    except BaseException:
        if not is_committing:
            _abort(by_server)
        raise
    _abort(by_server)
    return refused


def _abort(by_server: Sequence[tuple[Server, Sequence[Update]]]) -> None:
    """Aborts the parts. Ignores errors: an abort fails only if the shard is gone."""
    for abort in [server.abort(of_one) for server, of_one in by_server]:
        abort.wait()


def _prepare(parts: Sequence[Update]) -> _Refused:
    """Prepares the parts; returns the errors. If it is interrupted, nothing is left prepared."""
    refused: _Refused = {}
    begun: list[tuple[Server, list[Update], PendingReply[Refusals]]] = []
    try:
        for server, of_server in sorted(_by_server(parts), key=lambda each: each[0].order):
            begun.append((server, of_server, server.prepare(of_server)))
            if server.prepares_in_turn:
                refused |= _refused(*begun[-1][1:])
        for server, of_server, later in begun:
            if not server.prepares_in_turn:
                refused |= _refused(of_server, later)
    except BaseException:
        for _, _, later in begun:
            later.give_up()
        for server, of_server, _ in begun:
            server.abort(of_server).wait()
        raise
    return refused


def _ask_all_servers(
    parts: Sequence[Update], ask: Callable[[Server, Sequence[Update]], PendingReply[Refusals]]
) -> _Refused:
    """Calls `ask` for every server, then waits for all, so that servers work at the same time."""
    asked = [(of_server, ask(server, of_server)) for server, of_server in _by_server(parts)]
    refused: _Refused = {}
    try:
        for of_server, later in asked:
            refused |= _refused(of_server, later)
    except BaseException:
        for _, later in asked:
            later.give_up()
        raise
    return refused


def _refused(parts: Sequence[Update], later: PendingReply[Refusals]) -> _Refused:
    answered = zip(parts, later.wait(), strict=True)
    return {id(part): refusal for part, refusal in answered if refusal is not None}


def _by_server(parts: Iterable[_PartT]) -> list[tuple[Server, list[_PartT]]]:
    grouped: dict[Hashable, tuple[Server, list[_PartT]]] = {}
    for part in parts:
        server = part.shard.server
        grouped.setdefault(id(server), (server, []))[1].append(part)
    return list(grouped.values())
