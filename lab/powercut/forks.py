"""Runs programs of Python in forks of processes that have imported what they need, which takes
longer than most programs do.
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
        """Start `python -m MODULE ARGUMENT...` in this folder, in a session of its own."""
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
        # In a file, since a message may not be as long as an environment is.
        with os.fdopen(os.memfd_create("request"), "w") as file:
            json.dump(request, file)
            file.flush()
            socket.send_fds(server.connection, [b"run"], [file.fileno(), stdout, stderr])
        return Fork(server, self._idle)

    def close(self) -> None:
        """Wait for programs that run, and end the processes."""
        while self._servers:
            self._servers.pop().end()


class Fork:
    """A program that runs."""

    def __init__(self, server: _Server, idle: deque[_Server]) -> None:
        self._server = server
        self._idle = idle
        self._pid: int | None = None
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit code; -N if signal N ended it. The timeout is of its imports, too.

        Raises `subprocess.TimeoutExpired`, and `ChildProcessError` if the process that imports
        the module died.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if self._pid is None:
            self._pid = self._server.next_number(until)
        if self._status is None:
            self._status = self._server.next_number(until)
            self._idle.append(self._server)
        return self._status

    def end(self) -> None:
        """Kill it, with all of its session, and wait for that."""
        if self._pid is None:  # it's being imported
            self._server.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # which it killed
            self.wait()


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.connection, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "powercut.fork_server", str(there.fileno())],
                env=environment,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # on a terminal its programs' would be written by lines
                start_new_session=True,  # Ctrl-C is for who waits
            )

    def next_number(self, until: float | None) -> int:
        left_s = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([self.connection], [], [], left_s)[0]:
            raise subprocess.TimeoutExpired("a fork", left_s or 0)
        answer = self.connection.recv(100)
        if not answer:
            status = self._process.wait()
            raise ChildProcessError(f"the process that imports a program ended with {status}")
        return int(answer)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.connection.close()
        self._process.wait()
