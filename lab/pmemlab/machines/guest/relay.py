"""Passes the control socket of `pmemlab machine serve` through standard input and output.

For clients that can start a command beside the socket but can't connect to it:
`python -m pmemlab.machines.guest.relay STATE_FOLDER`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from pmemlab.errors import LabError
from pmemlab.machines.guest.control import connect
from pmemlab.machines.guest.streams import write_all

__all__ = ["relay"]

_READ_BYTES = 1 << 16


def relay(state: Path, source: int, sink: int) -> None:
    """Passes bytes from the descriptor `source` to the guest served with this state folder, and
    from the guest to `sink`, until either end hangs up. Raises `LabError` if no guest is served.
    """
    with connect(state) as connection:
        threading.Thread(target=_send, args=(source, connection), daemon=True).start()
        with suppress(OSError):  # the reader has hung up
            while data := connection.recv(_READ_BYTES):
                write_all(sink, data)


def _send(source: int, connection: socket.socket) -> None:
    with suppress(OSError):  # the guest's end has hung up
        while data := os.read(source, _READ_BYTES):
            connection.sendall(data)
        # `pmemlab machine serve` then kills the started commands, and hangs up as well.
        connection.shutdown(socket.SHUT_RDWR)


def main() -> int:
    try:
        relay(Path(sys.argv[1]), sys.stdin.fileno(), sys.stdout.fileno())
    except LabError as error:
        print(f"pmemlab: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
