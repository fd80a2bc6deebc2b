"""Commands in a container, which may die while they run."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

import docker
from docker.errors import DockerException
from docker.models.containers import Container
from docker.utils import socket as docker_stream
from requests import RequestException

from pmemlab.errors import EXEC_LAB_ERROR_STATUS, MachineDiedError
from pmemlab.machines.container.health import has_ended, last_log_lines
from pmemlab.machines.lines import Lines, OnLine

__all__ = ["ContainerCommand"]

_LOOK_EVERY_S = 1.0
_LOOK_AGAIN_S = 0.1
_END_S = 2.0
_KILLED = 137
# By SIGKILL; and of `pmemlab machine exec`, whose guest is gone.
_SUSPICIOUS = (_KILLED, EXEC_LAB_ERROR_STATUS)

# The engine can't end a command that it has started, and lets it run when whoever asked for it
# dies. But it then closes the command's standard input, and that ends the command.
_UNTIL_HANG_UP = """
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
{ cat <&3 >/dev/null; kill -KILL $command; } >/dev/null 2>&1 &
exec 3<&-
wait $command
"""


class ContainerCommand:
    """One command, by `docker exec`; it runs as soon as it is made.

    stdout, stderr: what it has written so far. It ends when this process does.

    `wait` is for one thread, `kill` for any.
    """

    def __init__(
        self, client: docker.DockerClient, container: Container, argv: Sequence[str]
    ) -> None:
        """Raises `MachineDiedError` where the container does not run."""
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._api = client.api
        self._container = container
        self._killed = False
        self._frames: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        with self._death_explained():
            self._id = self._api.exec_create(
                container.id, ["sh", "-c", _UNTIL_HANG_UP, "sh", *argv], stdin=True
            )["Id"]
            stream = self._api.exec_start(self._id, socket=True)
        self._stream = cast(socket.SocketIO, stream)
        threading.Thread(target=self._read, name="docker exec", daemon=True).start()

    def wait(self, timeout: float | None = None, on_line: OnLine | None = None) -> int:
        """Its exit status.

        on_line: told each whole line that it writes, as it comes.

        Raises `TimeoutError` past the timeout, and leaves it running; `MachineDiedError` within
        seconds where the container ends meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        lines = Lines(on_line)
        while True:
            left = _LOOK_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                frame = self._frames.get(timeout=min(left, _LOOK_EVERY_S))
            except queue.Empty:
                self._check_container()
                continue
            if frame is None:
                return self._exit_status()
            stream, data = frame
            output = self.stdout if stream == docker_stream.STDOUT else self.stderr
            output += data
            lines.feed(stream, data)

    def kill(self) -> None:
        """End it at once. Fine where it, or the container, has ended already."""
        self._killed = True
        # The stream itself is being read by a thread that closing it would not wake.
        with (
            suppress(OSError, ValueError),
            socket.socket(fileno=os.dup(self._stream.fileno())) as own,
        ):
            own.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        # Whatever breaks the stream is found out by those who look at the container then.
        with suppress(Exception):
            frames = docker_stream.frames_iter(self._stream, tty=False)  # type: ignore[no-untyped-call]
            for frame in frames:
                self._frames.put(frame)
        self._frames.put(None)
        self._stream.close()

    def _exit_status(self) -> int:
        """Where the stream has ended: the engine may know more only a moment later."""
        if self._killed:
            return _KILLED
        deadline = time.monotonic() + _END_S
        while True:
            with self._death_explained():
                state = self._api.exec_inspect(self._id)
            status = None if state["Running"] else state["ExitCode"]
            self._check_container()
            # What ends a container ends its commands first.
            late = time.monotonic() > deadline
            if status is not None and (late or status not in _SUSPICIOUS):
                return int(status)
            if late:
                raise MachineDiedError(
                    f"container {self._container.name} has lost a command that ran",
                    last_log_lines(self._container),
                )
            time.sleep(_LOOK_AGAIN_S)

    def _check_container(self) -> None:
        try:
            ended = has_ended(self._container)
        except (DockerException, RequestException):
            return  # a busy engine; where it's gone, the stream ends
        if ended:
            raise MachineDiedError(
                f"container {self._container.name} ended while a command ran",
                last_log_lines(self._container),
            )

    @contextmanager
    def _death_explained(self) -> Iterator[None]:
        """The engine refuses to speak of commands in a container that does not run."""
        try:
            yield
        except (DockerException, RequestException) as error:
            raise MachineDiedError(
                f"container {self._container.name} does not run ({error})",
                last_log_lines(self._container),
            ) from None
