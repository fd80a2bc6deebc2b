"""Runs programs under server processes that end all processes left by a program.

Python programs may run as forks of a server that has imported their modules: most of them take less
time than their imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Fork", "Forks"]


class Forks:
    """Starts programs, each under a `fork_server` process. `close()` ends the servers.

    imports_once: the programs are `python -m MODULE ARGUMENT...`, and forks of a server that has
        imported the module.
    environment: of the servers; a program's own comes too late for imports. Default: this
        process's; of servers that import, the first program's.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, imports_once: bool = False
    ) -> None:
        self._environment = environment
        self._imports_once = imports_once
        self._servers: list[_Server] = []
        self._idle: deque[_Server] = deque()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int
    ) -> Fork:
        """Starts a program in this folder, in a session of its own. Raises `OSError`; if the
        program is a fork, its `wait` does.
        """
        request = {
            "module": command[2] if self._imports_once else None,
            "arguments": [*command[3:]] if self._imports_once else [*command],
            "environment": dict(environment),
            "folder": str(Path.cwd()),
        }
        try:
            server = self._idle.pop()
        except IndexError:
            server = self._new_server(environment)
        # Through a file, since an environment may be longer than a message.
        with os.fdopen(os.memfd_create("request"), "w") as file:
            json.dump(request, file)
            file.flush()
            socket.send_fds(server.connection, [b"run"], [file.fileno(), stdout, stderr])
        program = Fork(server, self._idle)
        if not self._imports_once:
            program.wait_for_start(None)
        return program

    def _new_server(self, environment: Mapping[str, str]) -> _Server:
        """Returns a new server. environment: of the program that it starts first."""
        if self._imports_once:
            # Without this variable a server belongs to no try of `powercut`.
            own = {k: v for k, v in environment.items() if k != "POWERCUT_SESSION"}
            server = _Server(self._environment or own, None)
        else:
            # Python imports from its working folder first, and the user's may have a json.py.
            server = _Server(self._environment or os.environ, Path(__file__).parents[1])
        self._servers.append(server)
        return server

    def close(self) -> None:
        """Waits for running programs, and ends the servers."""
        self._idle.clear()
        while self._servers:
            self._servers.pop().end()


class Fork:
    """A running program."""

    def __init__(self, server: _Server, idle: deque[_Server]) -> None:
        self._server = server
        self._idle = idle
        self._pid: int | None = None
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the program's exit code when it and all its descendants have ended; -N if signal
        N ended it. The timeout includes its imports.

        Raises `subprocess.TimeoutExpired`, and `ChildProcessError` if the server that imports the
        module died.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self.wait_for_start(until)
        if self._status is None:
            self._status = self._server.next_number(until)
            self._idle.append(self._server)
        return self._status

    def wait_for_start(self, until: float | None) -> None:
        """Waits until the program's id is known. Raises as `wait`, or `OSError`."""
        if self._pid is not None:
            return
        number = self._server.next_number(until)
        if number < 0:
            self._idle.append(self._server)
            raise OSError(-number, os.strerror(-number))
        self._pid = number

    def end(self) -> None:
        """Kills the program, with all processes that it has started, and waits for their end."""
        if self._status is not None:  # no process is left
            return
        if self._pid is None:  # its module is being imported
            self._server.kill()
            return
        self.kill()
        with contextlib.suppress(ChildProcessError):  # killed with the program
            self.wait()

    def kill(self) -> None:
        """Kills it and its children, except in sessions of their own, which `wait` ends."""
        self.send(signal.SIGKILL)

    def send(self, signal_number: int) -> None:
        """Sends a signal to the program and its children, except in sessions of their own."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal_number)


class _Server:
    def __init__(self, environment: Mapping[str, str], folder: Path | None) -> None:
        self.connection, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "powercut.fork_server", str(there.fileno())],
                env=environment,
                cwd=folder,
                pass_fds=[there.fileno(), *_inheritable()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # programs' output is buffered by line on a tty
                start_new_session=True,  # Ctrl-C is for the waiting process
            )

    def next_number(self, until: float | None) -> int:
        left_s = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([self.connection], [], [], left_s)[0]:
            raise subprocess.TimeoutExpired("a fork", left_s or 0)
        answer = self.connection.recv(100)
        if not answer:
            status = self._process.wait()
            raise ChildProcessError(f"the process that starts programs ended with {status}")
        return int(answer)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.connection.close()
        self._process.wait()


def _inheritable() -> list[int]:
    """Returns the descriptors that our parent, for example a shell, left open for programs."""
    found = []
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed again
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found
