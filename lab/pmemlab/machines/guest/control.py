"""Runs commands of other processes in a guest that `pmemlab machine serve` keeps.

The serving process listens on a socket in the guest's state folder. The frames are those of the
agent: a client sends SPAWN, KILL, SIGNAL, INPUT, END_INPUT, RESIZE and READ, and receives STDOUT,
STDERR, TAKEN and EXIT. It may switch the guest's power by POWER_CUT and POWER_ON.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.guest import agent
from pmemlab.machines.guest.link import Command, Link
from pmemlab.machines.protocol import Spawner

__all__ = ["ControlServer", "attach", "connect", "switch_power"]

_SOCKET = "control.sock"
_OF_COMMANDS = frozenset(
    {agent.KILL, agent.SIGNAL, agent.INPUT, agent.END_INPUT, agent.RESIZE, agent.READ}
)


class ServedGuest(Spawner, Protocol):
    """A guest that starts commands and whose power can be switched."""

    def power_cut(self) -> None: ...

    def power_on(self) -> None: ...


@contextmanager
def attach(state: Path) -> Iterator[Link]:
    """Yields a link to the guest that is served with this state folder. Raises `LabError`."""

    def death_error(observation: str) -> LabError:
        return MachineDiedError(f"the machine of {state} {observation}")

    link = Link(connect(state), death_error)
    try:
        yield link
    finally:
        link.close()


def connect(state: Path) -> socket.socket:
    """Returns a socket to the guest that is served with this state folder. Raises `LabError`."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(state) as path:
            connection.connect(path)
    except OSError as error:
        connection.close()
        raise LabError(
            f"state folder {state}: no machine is served there ({error.strerror}); "
            f"`pmemlab machine serve TOPOLOGY --state-dir {state}` starts one"
        ) from error
    return connection


def switch_power(state: Path, *, on: bool) -> None:
    """Cuts the power of the guest that is served with this state folder, or boots it again.

    Raises `LabError` if that fails.
    """
    with attach(state) as link:
        link.switch_power(agent.POWER_ON if on else agent.POWER_CUT)


class ControlServer:
    """Serves clients in its own threads between `__enter__` and `__exit__`."""

    def __init__(self, state: Path, guest: ServedGuest) -> None:
        self._state = state
        self._guest = guest
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> ControlServer:
        with _short_path(self._state) as path:
            Path(path).unlink(missing_ok=True)  # left by a killed server; the folder is ours now
            self._listener.bind(path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="control", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        (self._state / _SOCKET).unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            client = _Client(connection, self._guest)
            threading.Thread(target=client.serve, name="control client", daemon=True).start()


class _Client:
    """A client's connection. `_lock` guards sending and `_running`.

    Frames about a command pass through unchanged, so the agent waits for a slow client, and nothing
    is buffered here.
    """

    def __init__(self, connection: socket.socket, guest: ServedGuest) -> None:
        self._socket = connection
        self._guest = guest
        self._lock = threading.Lock()
        self._running: dict[int, Command] = {}  # by the client's channel

    def serve(self) -> None:
        """Serves until the client hangs up, then kills the commands that the client started."""
        unpacker = agent.Unpacker()
        with self._socket:
            while True:
                try:
                    data = self._socket.recv(1 << 16)
                except OSError:
                    data = b""
                if not data:
                    break
                for kind, channel, payload in unpacker.feed(data):
                    self._handle(kind, channel, payload)
            with self._lock:
                left_running = list(self._running.values())
            for command in left_running:
                with suppress(LabError):
                    command.kill()

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == agent.PING:
            self._send(agent.PONG, channel)
        elif kind == agent.SPAWN:
            request = json.loads(payload)
            try:
                command = self._guest.spawn(
                    request["argv"], request["env"], request.get("terminal"), request["input"]
                )
            except (LabError, TypeError, ValueError) as error:
                self._send_error(channel, error)
                return
            with self._lock:
                self._running[channel] = command
            threading.Thread(target=self._pump, args=(channel, command), daemon=True).start()
        elif kind in (agent.POWER_CUT, agent.POWER_ON):
            switch = self._guest.power_cut if kind == agent.POWER_CUT else self._guest.power_on
            # A boot takes long, and the client's pings need an answer meanwhile.
            threading.Thread(target=self._switch, args=(channel, switch), daemon=True).start()
        elif kind in _OF_COMMANDS:
            with self._lock:
                addressed = self._running.get(channel)
            if addressed is not None:
                with suppress(LabError):
                    addressed.send(kind, payload)

    def _switch(self, channel: int, switch: Callable[[], None]) -> None:
        try:
            switch()
            self._send_end(channel, {"returncode": 0})
        except LabError as error:
            self._send_error(channel, error)

    def _pump(self, channel: int, command: Command) -> None:
        try:
            for kind, payload in command.frames():
                self._send(kind, channel, payload)
        except LabError as error:
            self._send_error(channel, error)
        with self._lock:
            del self._running[channel]

    def _send_error(self, channel: int, error: Exception) -> None:
        died = isinstance(error, MachineDiedError)
        self._send_end(channel, {"error": str(error), "died": died})

    def _send_end(self, channel: int, document: Mapping[str, object]) -> None:
        self._send(agent.EXIT, channel, json.dumps(document).encode())

    def _send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        with self._lock, suppress(OSError):  # a client that has gone needs no answer
            self._socket.sendall(agent.pack(kind, channel, payload))


@contextmanager
def _short_path(state: Path) -> Iterator[str]:
    """Yields a short path of the socket: a socket's path may have 107 bytes, a folder's more."""
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{_SOCKET}"
    finally:
        os.close(folder)
