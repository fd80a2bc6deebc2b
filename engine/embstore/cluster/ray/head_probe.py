"""Checks that a Ray head answers at an address. Ray itself would try for minutes."""

from __future__ import annotations

import os
import socket
import time

from embstore.errors import EmbStoreError, InvalidArgumentError

__all__ = ["check_answers", "host_and_port"]

# A gRPC server, such as a Ray head, answers the HTTP/2 preface with a SETTINGS frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEAD_BYTES = 9
_SETTINGS = 4  # a frame's type, its fourth byte


def host_and_port(name: str, address: str) -> tuple[str, int]:
    """Splits "IP:PORT" or "HOST:PORT". name: the setting that gives it, for the error."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidArgumentError(f"{name} must be IP:PORT, got {address!r}")
    return host, int(port)


def check_answers(name: str, address: str, within_s: float = 10.0) -> None:
    """Raises EmbStoreError if nothing answers in within_s, or something that isn't a Ray head."""
    deadline = time.monotonic() + within_s
    try:
        with socket.create_connection(host_and_port(name, address), within_s) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return  # with TLS, it wouldn't answer plain text
            connection.sendall(_HELLO)
            answer = b""
            while len(answer) < _FRAME_HEAD_BYTES:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                received = connection.recv(_FRAME_HEAD_BYTES - len(answer))
                if not received:
                    break
                answer += received
    except TimeoutError:
        raise EmbStoreError(
            f"{name}: nothing answers at {address} within {within_s:g} s; start a server there "
            "(python -m embstore.server), or see whether it is stopped, or a firewall is between"
        ) from None
    except OSError as error:
        raise EmbStoreError(
            f"{name}: nothing can be reached at {address} ({error.strerror or error}); start a "
            "server there (python -m embstore.server), or give the address that one printed"
        ) from error
    if len(answer) < _FRAME_HEAD_BYTES or answer[3] != _SETTINGS:
        raise EmbStoreError(
            f"{name}: what answers at {address} is no Ray head; give the address that a server "
            "printed"
        )
