"""Commands in a container, which may die while they run."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import docker
from docker.errors import DockerException
from docker.models.containers import Container
from requests import RequestException

from pmemlab.container_engine.health import STATE_FOLDER, has_ended, last_log_lines
from pmemlab.errors import EXEC_LAB_ERROR_STATUS, MachineDiedError

__all__ = ["ContainerCommand"]

_LOOK_EVERY_S = 1.0
_LOOK_AGAIN_S = 0.1
_END_S = 2.0
# By SIGKILL; and of `pmemlab exec`, whose guest is gone.
_SUSPICIOUS = (137, EXEC_LAB_ERROR_STATUS)


class ContainerCommand:
    """One command, by `docker exec`; it runs as soon as it is made.

    stdout, stderr: what it has written so far.

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
        # `docker exec` can't end what it has started, so the command leaves its number behind.
        self._pid_file = f"{STATE_FOLDER}/exec-{uuid.uuid4().hex}.pid"
        self._chunks: queue.SimpleQueue[tuple[bytes | None, bytes | None] | None]
        self._chunks = queue.SimpleQueue()
        script = 'echo $$ > "$0" && exec "$@"'
        with self._death_explained():
            self._id = self._api.exec_create(
                container.id, ["sh", "-c", script, self._pid_file, *argv]
            )["Id"]
            stream = self._api.exec_start(self._id, stream=True, demux=True)
        threading.Thread(target=self._read, args=(stream,), name="docker exec", daemon=True).start()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status.

        Raises `TimeoutError` past the timeout, and leaves it running; `MachineDiedError` within
        seconds where the container ends meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                chunk = self._chunks.get(timeout=min(left, _LOOK_EVERY_S))
            except queue.Empty:
                self._check_container()
                continue
            if chunk is None:
                return self._exit_status()
            self.stdout += chunk[0] or b""
            self.stderr += chunk[1] or b""

    def kill(self) -> None:
        """End it at once. Fine where it, or the container, has ended already."""
        self._killed = True
        script = 'kill -KILL "$(cat "$0")"'
        with suppress(DockerException):
            self._container.exec_run(["sh", "-c", script, self._pid_file])

    def _read(self, stream: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        # Whatever breaks the stream is found out by those who look at the container then.
        with suppress(Exception):
            for chunk in stream:
                self._chunks.put(chunk)
        self._chunks.put(None)

    def _exit_status(self) -> int:
        """Where the stream has ended: the engine may know more only a moment later."""
        deadline = time.monotonic() + _END_S
        while True:
            with self._death_explained():
                state = self._api.exec_inspect(self._id)
            status = None if state["Running"] else state["ExitCode"]
            self._check_container()
            # What ends a container ends its commands first.
            late = time.monotonic() > deadline
            if status is not None and (late or self._killed or status not in _SUSPICIOUS):
                return int(status)
            if late:
                raise MachineDiedError(
                    f"container {self._container.name} has lost a command that ran",
                    last_log_lines(self._container),
                )
            time.sleep(_LOOK_AGAIN_S)

    def _check_container(self) -> None:
        if has_ended(self._container):
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
