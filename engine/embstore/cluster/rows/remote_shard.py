"""Stands in for a `LocalShard` that is on another node, or in another process on this one."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from embstore import _core
from embstore.cluster.ray.calls import Answer
from embstore.cluster.rows import wire
from embstore.cluster.rows.server_link import ServerLink
from embstore.errors import (
    ClosedError,
    EmbStoreError,
    ForkedError,
    InvalidArgumentError,
    ShardLostError,
    StorageError,
    WorkerLostError,
)
from embstore.table.shard import Shard, ShardRows, ShardSpec

__all__ = ["RemoteShard"]

_FORWARDED_METHODS = frozenset(name for name in vars(Shard) if not name.startswith("_"))


class RemoteShard:
    """A shard at a server. Rows go over sockets; everything else is a call of the server's actor.

    Errors are those of the shard, and say where they happened. Once the server is gone, every
    method raises ShardLostError. An unshared one that goes out of scope frees its rows' memory, as
    a `LocalShard` does.
    """

    def __init__(
        self,
        server: ServerLink,
        table: int,
        spec: ShardSpec,
        *,
        close_shared: Callable[[], None] | None = None,
        on_end: Callable[[], None] = lambda: None,
        place: str = "",
    ) -> None:
        """table: its number at the server. close_shared: called instead of closing a shard that
        other workers may use. on_end: called after the last request. place: as in `OpenShard`.
        """
        self.place = place
        self.server = server
        self.table = table
        self.dim = spec.dim
        self.where = f"the shard {spec.name} on node {server.actor.node}"
        self._name = spec.name
        self._close_shared = close_shared
        self._on_end = on_end
        self._made_in = _core.fork_generation()
        self._is_closed = False
        self._lock = threading.Lock()
        self._pushes = 0
        self._finalizer = weakref.finalize(
            self, _close_at_server, server, table, on_end, self._made_in
        )
        self._finalizer.atexit = False  # the servers end with the program
        if close_shared is not None:
            self._finalizer.detach()

    @property
    def process_id(self) -> int:
        """The id of its server's process, on the server's node."""
        return self.server.actor.process_id

    # --- Rows

    @property
    def pushes(self) -> int:
        """The number of pushes that were begun."""
        with self._lock:
            return self._pushes

    def check_can_send(self, ids: int) -> None:
        """Raises what `check_usable` does, and InvalidArgumentError if a request has no room for
        that many ids.
        """
        self.check_usable()
        size = wire.batch_bytes(ids, self.dim)
        if size > wire.MAX_BYTES:
            raise InvalidArgumentError(
                f"ids: {ids} ids of dim {self.dim} are {size} bytes, and {self.where} takes "
                f"{wire.MAX_BYTES} at once; give smaller batches, or more shards"
            )

    def begin_push(self) -> int:
        """Begins a push and returns its number. No other push to this shard may begin until it is
        over.
        """
        with self._lock:
            self._pushes += 1
            return self._pushes

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Returns the remote version of any other method of `Shard`."""
        if method not in _FORWARDED_METHODS:
            raise AttributeError(f"{type(self).__name__} has no {method!r}")
        return partial(self._ask, method)

    def as_shard(self) -> Shard:
        return cast("Shard", self)

    def close(self) -> None:
        """Closes the shard. Does nothing if the shard is lost, which has been reported. A shared
        shard is left even so, since only this process's link may be lost.
        """
        if self._is_closed or _core.fork_generation() != self._made_in:
            return
        was_lost = self.server.lost is not None
        try:
            if self._close_shared is not None:
                self._close_shared()
            elif not was_lost:
                self._ask("close")
        except (ShardLostError, WorkerLostError) as error:
            if was_lost or isinstance(error, ShardLostError):
                self._end()
            if not was_lost:
                raise
        else:
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._finalizer.detach()
        self._on_end()

    # --- Calls

    def check_usable(self) -> None:
        """Raises ForkedError, ClosedError or ShardLostError if the shard can't be used."""
        if _core.fork_generation() != self._made_in:
            raise ForkedError(
                f"{self._name}: belongs to the process that this one was forked from; open it in "
                "the worker, or start workers by spawn"
            )
        if self._is_closed:
            raise ClosedError(f"{self._name} is closed")
        if self.server.lost is not None:
            raise self.lost_error()

    def lost_error(self) -> ShardLostError:
        """Returns the error of a shard whose server is gone."""
        return ShardLostError(
            f"{self.where} can't be reached any more: {self.server.lost}. What it learnt since the "
            "last save is lost: close the variable, make it anew, and restore the last save with "
            "embstore.restore()"
        )

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        self.check_usable()
        call = self.server.actor.call
        try:
            answer: Answer = call(
                self.table, method, arguments, options, partial(_check_alive, self.server)
            )
        except ShardLostError as error:
            self.server.lost = self.server.lost or str(error)
            raise self.lost_error() from error
        if answer.error is not None:
            keys = getattr(answer.error, "keys", [])
            name = type(answer.error).__name__
            raise wire.error_named(name, str(answer.error), keys, self.where) from None
        return _writable(answer.value)


def _check_alive(server: ServerLink) -> None:
    try:
        server.ping()
    except StorageError:  # this process lacks a socket, which says nothing about the server
        return
    except (OSError, EOFError) as error:
        raise ShardLostError(str(error) or type(error).__name__) from error


def _close_at_server(
    server: ServerLink, table: int, on_end: Callable[[], None], fork_generation: int
) -> None:
    if _core.fork_generation() != fork_generation:
        return

    def close() -> None:
        with contextlib.suppress(EmbStoreError):  # there is no caller to tell
            if server.lost is None:
                server.actor.call(table, "close", (), {}, partial(_check_alive, server))
        on_end()

    # A finalizer may run while its thread holds any lock, so closing needs another thread.
    with contextlib.suppress(RuntimeError):  # Python exits, and the servers with it
        threading.Thread(target=close, name="embstore-out-of-scope", daemon=True).start()


def _writable(value: Any) -> Any:
    """Returns the value with writable arrays: those from Ray's memory are read-only."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, ShardRows):
        return ShardRows(
            _writable(value.keys),
            _writable(value.values),
            _writable(value.frequencies),
            _writable(value.versions),
            [_writable(slot) for slot in value.slots],
        )
    return value
