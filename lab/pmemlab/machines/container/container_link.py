"""The link to the guest that a container serves."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from docker.models.containers import Container

from pmemlab.errors import LabError, MachineDiedError, MissingRequirementError
from pmemlab.machines.container.health import STATE_FOLDER, last_log_lines
from pmemlab.machines.guest.link import Link

__all__ = ["container_link"]

_RELAY = ("python", "-m", "pmemlab.machines.guest.relay", STATE_FOLDER)
_END_S = 10.0


@contextmanager
def container_link(container: Container) -> Iterator[Link]:
    """Yields a link that starts commands, with or without a terminal. The commands end when this
    process does, however it ends; a command started by its own `docker exec` would run on.

    Raises `MissingRequirementError` if there is no `docker` command. The link raises
    `MachineDiedError` with the end of the container's log.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise MissingRequirementError("the command `docker`, for a terminal", "make docker")
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as complaints:

        def death_error(observation: str) -> LabError:
            details = ""
            with suppress(ValueError):  # it was closed with the link
                complaints.seek(0)
                details = complaints.read().decode(errors="replace").strip()
            return MachineDiedError(
                f"the machine of container {container.name} {observation}"
                + (f" ({details})" if details else ""),
                last_log_lines(container),
            )

        with theirs:
            relay = subprocess.Popen(
                [docker, "exec", "--interactive", str(container.name), *_RELAY],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=complaints,
                start_new_session=True,  # the terminal's signals are the guest's
            )
        link = Link(ours, death_error)
        try:
            yield link
        finally:
            link.close()
            try:
                relay.wait(_END_S)
            except subprocess.TimeoutExpired:
                relay.kill()
                relay.wait()
