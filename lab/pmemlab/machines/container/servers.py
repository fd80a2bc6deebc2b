"""Parameter servers in containers, on a network of their own."""

from __future__ import annotations

import os
import secrets
import time
from datetime import datetime

from docker.models.containers import Container
from rich.console import Console

from pmemlab.errors import LabError
from pmemlab.machines.container.clone import Clone, find_clone
from pmemlab.machines.container.compose_command import Compose
from pmemlab.machines.container.connection import connect
from pmemlab.machines.container.health import has_ended, last_log_lines
from pmemlab.machines.container.image import ensure_image
from pmemlab.machines.container.inventory import find_services
from pmemlab.machines.container.stages import Stages

__all__ = [
    "HEAD",
    "HEAD_ADDRESS",
    "build_servers_image",
    "servers_down",
    "servers_up",
    "wait_until_ready",
]

HEAD = "head"
"""The service in whose container programs are started."""

HEAD_ADDRESS = "head:6379"
"""The cluster's address inside the containers: their RAY_ADDRESS."""

_READY = b" is ready"  # printed by `python -m embstore.server`
_READY_WITHIN_S = 120.0
_POLL_S = 0.25


def build_servers_image() -> None:
    """Builds the servers' image if need be, and starts nothing. Raises as `servers_up`."""
    with Stages(Console()) as stages:
        ensure_image(connect(), find_clone(), "servers", stages)


def servers_up(project: str | None = None) -> dict[str, Container]:
    """Builds the image if need be, starts the services of compose.servers.yaml, and waits until
    each is a node of the cluster. Returns service -> container.

    project: the Compose project's name. Default: the clone's own.

    `lab_down` removes the servers. Raises `LabError` with the end of the log if a server ends, and
    `MissingRequirementError` if no Docker engine answers.
    """
    clone = find_clone()
    project = project or clone.servers_project
    client = connect()
    with Stages(Console()) as stages:
        image = ensure_image(client, clone, "servers", stages)
        starting = stages.begin("servers")
        starting.report("starting")
        _compose(clone, project, image).run("up", "--detach", "--remove-orphans")
        containers = find_services(client, project)
        for name, container in containers.items():
            starting.report(f"waiting for {name}")
            wait_until_ready(name, container)
        starting.end("ready")
    return containers


def servers_down(project: str) -> None:
    """Removes the servers, their network and their volume."""
    _compose(find_clone(), project, "").run("down", "--volumes")


def wait_until_ready(name: str, container: Container) -> None:
    """Waits until the server has joined the cluster since its last start."""
    deadline = time.monotonic() + _READY_WITHIN_S
    while True:
        if has_ended(container):
            raise LabError(f"server {name} has ended:\n{last_log_lines(container)}")
        # Skips the log from before, which the engine keeps over a restart.
        started_at = container.attrs["State"]["StartedAt"]
        if _READY in container.logs(since=_seconds(started_at)):
            return
        if time.monotonic() > deadline:
            raise LabError(
                f"server {name} is not ready after {_READY_WITHIN_S:g} s:\n"
                f"{last_log_lines(container)}"
            )
        time.sleep(_POLL_S)


def _seconds(timestamp: str) -> float:
    """Returns an RFC 3339 time, which Docker writes to the nanosecond, in seconds since 1970."""
    whole, _, fraction = timestamp.rstrip("Z").partition(".")
    since = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return since + float(f"0.{fraction or 0}")


def _compose(clone: Clone, project: str, image: str) -> Compose:
    return Compose(
        clone,
        clone.servers_file,
        project=project,
        environment={
            "PMEMLAB_CLONE": clone.project,
            "PMEMLAB_IMAGE": image,
            "PMEMLAB_SERVERS_TOKEN": _token(clone),
        },
    )


def _token(clone: Clone) -> str:
    """Returns the token of this clone's servers, which stays the same while `.lab` exists."""
    file = clone.root / ".lab/servers-token"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as written:
            written.write(secrets.token_hex(32))
    return file.read_text()
