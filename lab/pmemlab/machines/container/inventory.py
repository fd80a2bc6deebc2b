"""What a clone's lab has in the Docker engine, found by its labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container

from pmemlab.machines.container import labels
from pmemlab.machines.container.clone import Clone

__all__ = [
    "find_machines",
    "find_services",
    "is_of_image",
    "owner_label",
    "remove",
    "remove_images",
    "sweep",
    "sweep_abandoned",
]

# Compose's own labels, in both of its versions.
_COMPOSE_PROJECT = "com.docker.compose.project"
_COMPOSE_SERVICE = "com.docker.compose.service"


def find_machines(client: docker.DockerClient, clone: Clone) -> dict[str, Container]:
    """Topology -> container of the clone's lab, whatever its state."""
    found = {
        container.labels[labels.MACHINE]: container
        for container in _containers(client, clone)
        if labels.MACHINE in container.labels and labels.OWNER not in container.labels
    }
    return dict(sorted(found.items()))


def find_services(client: docker.DockerClient, project: str) -> dict[str, Container]:
    """Service -> container of a Compose project, whatever its state."""
    found = client.containers.list(
        all=True, filters={"label": f"{_COMPOSE_PROJECT}={project}"}, ignore_removed=True
    )
    return {container.labels[_COMPOSE_SERVICE]: container for container in found}


def is_of_image(container: Container, client: docker.DockerClient, image: str) -> bool:
    """Whether a container was made of the image that has this name now."""
    try:
        return bool(container.attrs["Image"] == client.images.get(image).id)
    except ImageNotFound:
        return False


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


def remove_images(client: docker.DockerClient, clone: Clone) -> int:
    """Remove the clone's images, what they were built in, and a base that no clone needs any more.

    Return how many images were removed. To be called when no container is left.
    """
    # A stage's image can't go before those that were built on it.
    of_clone = [f"{labels.CLONE}={clone.project}", f"{labels.STAGE}={clone.project}"]
    removed = 0
    while found := _removable(client, of_clone):
        removed += found
    if not client.images.list(filters={"label": labels.CLONE}):
        removed += _removable(client, [labels.BASE])
    return removed


def _removable(client: docker.DockerClient, image_labels: Sequence[str]) -> int:
    """Remove the images with any of the labels that can be removed now; how many they were."""
    removed = 0
    for label in image_labels:
        for image in client.images.list(all=True, filters={"label": label}):
            try:
                client.images.remove(image.tags[0] if image.tags else str(image.id))
                removed += 1
            except NotFound:
                removed += 1  # with one that was built on it
            except APIError as error:
                if error.status_code != 409:  # something else is built on it, or runs of it
                    raise
    return removed


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
