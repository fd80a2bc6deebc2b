"""Runs programs of Python in forks of processes that have imported what they need, which takes
longer than most programs do.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Fork", "Forks"]


class Forks:
    """Processes of `fork_server`, one for each program that runs at a time. `close()` ends them.

    environment: theirs. A program's own comes too late for what is read at an import.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._servers: list[_Server] = []
        self._idle: deque[_Server] = deque()

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
    ) -> Fork:
        """Start `python -m MODULE ARGUMENT...` in this folder, in a session of its own.

        Raises `ChildProcessError` if the process that imports the module dies of that.
        """
        request = {
            "module": module,
            "arguments": [*arguments],
            "environment": dict(environment),
            "folder": str(Path.cwd()),
        }
        try:
            server = self._idle.pop()
        except IndexError:
            server = _Server(self._environment)
            self._servers.append(server)
        socket.send_fds(server.connection, [json.dumps(request).encode()], [stdout, stderr])
        return Fork(server, self._idle)

    def close(self) -> None:
        """Wait for programs that run, and end the processes."""
        while self._servers:
            self._servers.pop().end()


class Fork:
    """A program that runs: what of `subprocess.Popen` has to do with a process."""

    def __init__(self, server: _Server, idle: deque[_Server]) -> None:
        self.returncode: int | None = None
        self._server = server
        self._idle = idle
        self.pid = server.next_number()

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit code; -N if signal N ended it. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._server.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = self._server.next_number()
            self._idle.append(self._server)
        return self.returncode


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.connection, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "powercut.fork_server", str(there.fileno())],
                env=environment,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def next_number(self) -> int:
        answer = self.connection.recv(100)
        if not answer:
            status = self._process.wait()
            raise ChildProcessError(f"the process that imports a program ended with {status}")
        return int(answer)

    def end(self) -> None:
        self.connection.close()
        self._process.wait()
