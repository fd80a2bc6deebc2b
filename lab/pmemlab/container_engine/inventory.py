"""What a clone's lab has in the Docker engine, found by its labels."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from pmemlab.clone import Clone
from pmemlab.container_engine import labels

__all__ = ["find_machines", "owner_label", "remove", "sweep", "sweep_abandoned"]


def find_machines(client: docker.DockerClient, clone: Clone) -> dict[str, Container]:
    """Topology -> container of the clone's lab, whatever its state."""
    found = {
        container.labels[labels.MACHINE]: container
        for container in _containers(client, clone)
        if labels.MACHINE in container.labels and labels.OWNER not in container.labels
    }
    return dict(sorted(found.items()))


def sweep(client: docker.DockerClient, clone: Clone) -> int:
    """Remove every container, network and volume of the clone; the number of containers."""
    containers = _containers(client, clone)
    for container in containers:
        remove(container)
    for network in client.networks.list(filters=_of(clone)):
        network.remove()
    for volume in client.volumes.list(filters=_of(clone)):
        volume.remove(force=True)
    return len(containers)


def sweep_abandoned(client: docker.DockerClient, clone: Clone) -> None:
    """Remove the throwaway containers whose owner died before it could."""
    for container in _containers(client, clone):
        owner = container.labels.get(labels.OWNER)
        if owner is not None and not _is_alive(owner):
            remove(container)


def remove(container: Container) -> None:
    """Kill and remove a container with its anonymous volumes; fine where it is gone already."""
    with suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code != 409:  # someone else is removing it
                raise


def owner_label() -> str:
    """This process, told apart from a later one of the same number."""
    return f"{os.getpid()}:{_start_time(os.getpid())}"


def _is_alive(owner: str) -> bool:
    pid, _, start_time = owner.partition(":")
    return _start_time(int(pid)) == start_time


def _start_time(pid: int) -> str | None:
    """When a process was started, in clock ticks since boot; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def _containers(client: docker.DockerClient, clone: Clone) -> list[Container]:
    return list(client.containers.list(all=True, filters=_of(clone), ignore_removed=True))


def _of(clone: Clone) -> dict[str, Any]:
    return {"label": f"{labels.CLONE}={clone.project}"}
