"""The protocol between a worker and a server, over a socket: batches of rows, and little else.

A connection begins with MAGIC and the server's token; the server answers MAGIC. Then each request
has one answer, in order. A request has a part for each table that it concerns. Integers and floats
are little-endian.

    request  head (kind, whether occurrences follow, worker, parts, global_step); for each part its
             head (table, dim, ids, push); then the ids of all parts, int64; their occurrences,
             uint32; their gradients, float32 (ids, dim), of APPLY and PREPARE alone
    answer   head (outcome, bytes of refusals, bytes of rows); the refusals as JSON, a list with
             null for each part that wasn't refused; the rows of all parts that were read, float32

While the answer to a request takes long, heads with the outcome WAITING are sent before it: a
worker that receives nothing for long knows that the server is gone.

A push is a batch of gradients of one table. Each worker numbers its pushes to a table's shard from
1, in the order in which it sends them, and sends a push again with the same number if the answer
was lost (see `pushes`). The pushes of a step are prepared by all shards that they concern, and then
all are committed or all aborted. If one server has all of these shards, APPLY does both.

Nothing that is read is ever executed or unpickled. Everyone who can read the network can read the
rows: use a private network.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore import errors
from embstore.errors import DamagedRowsError, EmbStoreError

__all__ = [
    "ANSWER_HEAD",
    "MAGIC",
    "MAX_BYTES",
    "MAX_PARTS",
    "MAX_WORKERS",
    "PART_HEAD",
    "REQUEST_HEAD",
    "TOKEN_BYTES",
    "WAITING_INTERVAL_S",
    "Outcome",
    "PartHead",
    "Request",
    "RequestHead",
    "batch_bytes",
    "error_named",
    "pack_refusals",
    "prepare",
    "receive",
    "receive_into",
    "receive_within",
    "send",
    "unpack_refusals",
]

MAGIC = b"embshrd3"  # the digit is the version
TOKEN_BYTES = 32
MAX_BYTES = 1 << 31  # of a request or an answer
MAX_PARTS = 1 << 16  # of a request
MAX_WORKERS = 1 << 16
WAITING_INTERVAL_S = 2.0

REQUEST_HEAD = struct.Struct("<B?HIq")
PART_HEAD = struct.Struct("<IIIxxxxQ")
ANSWER_HEAD = struct.Struct("<BxxxIQ")

_BUFFER_BYTES = 4 << 20  # kernel buffer of a socket: a batch of 60,000 rows of 16 floats
_BYTES_PER_CALL = 1 << 30  # the kernel takes less than 2 GiB at once
_VIEWS_PER_CALL = 512  # and at most 1024 buffers

# With these, a node that vanished without a word is noticed within 20 s.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_UNANSWERED_MS = 20_000


class Request(enum.IntEnum):
    SERVE = 0
    LOOK_UP = 1  # for training
    APPLY = 2  # all of its pushes, or none
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
    counts: bool = False  # whether the ids' numbers of occurrences follow the ids
    worker: int = 0
    parts: int = 0
    global_step: int = -1  # -1: none


class PartHead(NamedTuple):
    table: int  # its number at the server
    dim: int
    ids: int = 0
    push: int = 0  # its number; of a look-up, the push to wait for; 0: none


def prepare(connection: socket.socket) -> None:
    """Sets options: small messages go at once, large ones in one go, a lost peer is an error."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def send(connection: socket.socket, *parts: bytes | NDArray[Any]) -> None:
    """Sends all parts as one message."""
    views = [_view(part) for part in parts if len(part)]
    first = 0
    while first < len(views):
        sent = connection.sendmsg(views[first : first + _VIEWS_PER_CALL])
        while first < len(views) and sent >= len(views[first]):
            sent -= len(views[first])
            first += 1
        if sent:
            views[first] = views[first][sent:]


def receive(connection: socket.socket, count: int) -> bytearray:
    received = bytearray(count)
    receive_into(connection, received)
    return received


def receive_within(connection: socket.socket, count: int, within_s: float) -> bytes:
    """Does what `receive` does. Raises TimeoutError if not all has come after within_s seconds."""
    deadline = time.monotonic() + within_s
    received = b""
    while len(received) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"it has sent {len(received)} of {count} bytes in {within_s:g} s")
        connection.settimeout(left_s)
        piece = connection.recv(count - len(received))
        if not piece:
            raise EOFError("it closed the connection")
        received += piece
    return received


def receive_into(connection: socket.socket, *buffers: bytearray | NDArray[Any]) -> None:
    """Fills the buffers, one after the other. Raises EOFError if the peer closes the connection."""
    views = [_view(buffer) for buffer in buffers if len(buffer)]
    first = 0
    while first < len(views):
        count = connection.recvmsg_into(_views_of_one_call(views, first))[0]
        if count == 0:
            raise EOFError("it closed the connection")
        while first < len(views) and count >= len(views[first]):
            count -= len(views[first])
            first += 1
        if count:
            views[first] = views[first][count:]


def _views_of_one_call(views: list[memoryview], first: int) -> list[memoryview]:
    """Returns as many of the views, from `first`, as the kernel fills in one call."""
    selected: list[memoryview] = []
    room = _BYTES_PER_CALL
    for view in views[first : first + _VIEWS_PER_CALL]:
        selected.append(view[:room])
        room -= len(selected[-1])
        if room == 0:
            break
    return selected


def _view(buffer: bytes | bytearray | NDArray[Any]) -> memoryview:
    view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    return view.cast("B")


def pack_refusals(errors: Sequence[Exception | None]) -> bytes:
    """Packs one error or None for each part. An error that isn't from embstore is represented by
    its class name.
    """
    return json.dumps(
        [None if error is None else _error_fields(error) for error in errors]
    ).encode()


def _error_fields(error: Exception) -> dict[str, Any]:
    keys = [int(key) for key in error.keys] if isinstance(error, DamagedRowsError) else []
    return {"error": type(error).__name__, "message": str(error), "keys": keys}


def unpack_refusals(
    packed: bytes | bytearray, part_places: Sequence[str]
) -> list[EmbStoreError | None]:
    """Reverses `pack_refusals`. part_places: the shard of each part, which its error then names."""
    return [
        None
        if fields is None
        else error_named(fields["error"], fields["message"], fields["keys"], where)
        for fields, where in zip(json.loads(bytes(packed)), part_places, strict=True)
    ]


def error_named(name: str, message: str, keys: list[int], where: str) -> EmbStoreError:
    """Returns the error of that name in `embstore.errors`, with the place where it happened.

    For any other name, such as MemoryError, returns an EmbStoreError that contains it.
    """
    kind = getattr(errors, name) if name in errors.__all__ else None
    if kind is None:
        return EmbStoreError(f"{name}: {message} ({where})")
    text = f"{message} ({where})"
    error: EmbStoreError = DamagedRowsError(text, keys) if kind is DamagedRowsError else kind(text)
    return error


def batch_bytes(ids: int, dim: int) -> int:
    """Returns the greatest size of a part of a request, or of its answer."""
    return ids * (8 + 4 + 4 * dim)
