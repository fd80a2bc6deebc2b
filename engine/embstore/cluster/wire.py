"""What goes over the socket between a worker and a shard: batches of rows, and little else.

A connection begins with MAGIC and the shard's token; the shard answers MAGIC. Then each request has
one answer, in order. Integers and floats are little-endian.

    request  head (kind, whether occurrences follow, worker, ids, global_step, push), ids int64,
             occurrences uint32, gradients float32 (ids, dim)
    answer   head (outcome, bytes), and so many bytes: rows, or a refusal as JSON

Before the answer to a request that takes long come heads of the outcome WAITING: a worker that
hears nothing knows that the shard isn't there any more.

A push is a batch of gradients. Each worker's are numbered from 1, in the order in which it sends
them, and sent again with the same number where the answer was lost (see `pushes`). A push that
concerns several shards is prepared by all of them, and then committed.

Nothing that is read is ever executed or unpickled. Who can read the network reads the rows: use one
that is your own.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore import errors
from embstore.errors import DamagedRowsError, EmbStoreError

__all__ = [
    "ANSWER_HEAD",
    "MAGIC",
    "MOST_BYTES",
    "MOST_WORKERS",
    "REQUEST_HEAD",
    "TOKEN_BYTES",
    "WAITING_EVERY_S",
    "Outcome",
    "Request",
    "RequestHead",
    "batch_bytes",
    "error_named",
    "pack_refusal",
    "prepare",
    "receive",
    "receive_into",
    "send",
    "unpack_refusal",
]

MAGIC = b"embshrd2"  # the digit is the version
TOKEN_BYTES = 32
MOST_BYTES = 1 << 31  # of a request or an answer
MOST_WORKERS = 1 << 16
WAITING_EVERY_S = 2.0

REQUEST_HEAD = struct.Struct("<B?HxxxxQqQ")
ANSWER_HEAD = struct.Struct("<BxxxxxxxQ")

_BUFFER_BYTES = 4 << 20  # of the kernel, a socket: a batch of 60,000 rows of 16 floats
_BYTES_A_CALL = 1 << 30  # the kernel takes less than 2 GiB at once

# So that a node that vanished without a word is noticed in 20 s.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_UNANSWERED_MS = 20_000


class Request(enum.IntEnum):
    SERVE = 0
    LOOK_UP = 1  # for training
    APPLY = 2  # a push to this shard alone
    PREPARE = 3
    COMMIT = 4
    ABORT = 5
    PING = 6


class Outcome(enum.IntEnum):
    DONE = 0
    REFUSED = 1
    WAITING = 2


class RequestHead(NamedTuple):
    kind: Request
    counts: bool = False  # how often each id occurs follows the ids
    worker: int = 0
    ids: int = 0
    global_step: int = -1  # -1: none
    push: int = 0  # its number, or after which one rows are looked up; 0: none


def prepare(connection: socket.socket) -> None:
    """Has it send small messages at once, large ones in one go, and fail when its peer is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def send(connection: socket.socket, *parts: bytes | NDArray[Any]) -> None:
    """All of them, as one message."""
    views = [_view(part) for part in parts if len(part)]
    while views:
        sent = connection.sendmsg(views)
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


def receive(connection: socket.socket, count: int) -> bytearray:
    received = bytearray(count)
    receive_into(connection, received)
    return received


def receive_into(connection: socket.socket, buffer: bytearray | NDArray[Any]) -> None:
    """Fills it; EOFError where the peer closed the connection."""
    if len(buffer) == 0:
        return
    view = _view(buffer)
    while len(view):
        count = connection.recv_into(view, min(len(view), _BYTES_A_CALL))
        if count == 0:
            raise EOFError("it closed the connection")
        view = view[count:]


def _view(buffer: bytes | bytearray | NDArray[Any]) -> memoryview:
    view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    return view.cast("B")


def pack_refusal(error: Exception) -> bytes:
    """An error as JSON; those that aren't embstore's own go by the name of their class."""
    keys = [int(key) for key in error.keys] if isinstance(error, DamagedRowsError) else []
    told = {"error": type(error).__name__, "message": str(error), "keys": keys}
    return json.dumps(told).encode()


def unpack_refusal(packed: bytes | bytearray, where: str) -> EmbStoreError:
    told = json.loads(bytes(packed))
    return error_named(told["error"], told["message"], told["keys"], where)


def error_named(name: str, message: str, keys: list[int], where: str) -> EmbStoreError:
    """The error of `embstore.errors` of that name, which says where it happened.

    What isn't one of those, such as a MemoryError, becomes an EmbStoreError that names it.
    """
    kind = getattr(errors, name) if name in errors.__all__ else None
    if kind is None:
        return EmbStoreError(f"{name}: {message} ({where})")
    text = f"{message} ({where})"
    error: EmbStoreError = DamagedRowsError(text, keys) if kind is DamagedRowsError else kind(text)
    return error


def batch_bytes(ids: int, dim: int) -> int:
    """At most, of a request or its answer."""
    return ids * (8 + 4 + 4 * dim)
