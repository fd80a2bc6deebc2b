"""A clone's containers, networks, volumes and images in the Docker engine, found by labels."""

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
    "is_from_image",
    "owner_label",
    "remove_container",
    "remove_images",
    "sweep",
    "sweep_abandoned",
]

# Compose's own labels, in both of its versions.
_COMPOSE_PROJECT = "com.docker.compose.project"
_COMPOSE_SERVICE = "com.docker.compose.service"


def find_machines(client: docker.DockerClient, clone: Clone) -> dict[str, Container]:
    """Returns topology -> container of the clone's lab, in whatever state."""
    found = {
        container.labels[labels.MACHINE]: container
        for container in _containers(client, clone)
        if labels.MACHINE in container.labels and labels.OWNER not in container.labels
    }
    return dict(sorted(found.items()))


def find_services(client: docker.DockerClient, project: str) -> dict[str, Container]:
    """Returns service -> container of a Compose project, in whatever state."""
    found = client.containers.list(
        all=True, filters={"label": f"{_COMPOSE_PROJECT}={project}"}, ignore_removed=True
    )
    return {container.labels[_COMPOSE_SERVICE]: container for container in found}


def is_from_image(container: Container, client: docker.DockerClient, image: str) -> bool:
    """Returns whether a container was made from the image that has this name now."""
    try:
        return bool(container.attrs["Image"] == client.images.get(image).id)
    except ImageNotFound:
        return False


def sweep(client: docker.DockerClient, clone: Clone) -> int:
    """Removes all containers, networks and volumes of the clone. Returns the containers' number."""
    containers = _containers(client, clone)
    for container in containers:
        remove_container(container)
    for network in client.networks.list(filters=_clone_filter(clone)):
        network.remove()
    for volume in client.volumes.list(filters=_clone_filter(clone)):
        volume.remove(force=True)
    return len(containers)


def sweep_abandoned(client: docker.DockerClient, clone: Clone) -> None:
    """Removes the throwaway containers whose owner died before removing them."""
    for container in _containers(client, clone):
        owner = container.labels.get(labels.OWNER)
        if owner is not None and not _is_alive(owner):
            remove_container(container)


def remove_images(client: docker.DockerClient, clone: Clone) -> int:
    """Removes the clone's images, their build stages, and a base that no clone needs any more.

    Returns the number of images removed. REQUIRES: no container is left.
    """
    # A stage's image can be removed only after the images built on it.
    of_clone = [f"{labels.CLONE}={clone.project}", f"{labels.STAGE}={clone.project}"]
    removed = 0
    while found := _remove_unused_images(client, of_clone):
        removed += found
    if not client.images.list(filters={"label": labels.CLONE}):
        removed += _remove_unused_images(client, [labels.BASE])
    return removed


def _remove_unused_images(client: docker.DockerClient, image_labels: Sequence[str]) -> int:
    """Removes the images with any of the labels that can be removed now. Returns their number."""
    removed = 0
    for label in image_labels:
        for image in client.images.list(all=True, filters={"label": label}):
            try:
                client.images.remove(image.tags[0] if image.tags else str(image.id))
                removed += 1
            except NotFound:
                removed += 1  # removed together with an image built on it
            except APIError as error:
                if error.status_code != 409:  # an image is built on it, or a container runs it
                    raise
    return removed


def remove_container(container: Container) -> None:
    """Kills and removes a container with its anonymous volumes, unless it is gone already."""
    with suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code != 409:  # another process is removing it
                raise


def owner_label() -> str:
    """Returns a label of this process that no later process with the same pid has."""
    return f"{os.getpid()}:{_start_time(os.getpid())}"


def _is_alive(owner: str) -> bool:
    pid, _, start_time = owner.partition(":")
    return _start_time(int(pid)) == start_time


def _start_time(pid: int) -> str | None:
    """Returns a process's start time in clock ticks since boot; None if there is no process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def _containers(client: docker.DockerClient, clone: Clone) -> list[Container]:
    return list(client.containers.list(all=True, filters=_clone_filter(clone), ignore_removed=True))


def _clone_filter(clone: Clone) -> dict[str, Any]:
    return {"label": f"{labels.CLONE}={clone.project}"}
