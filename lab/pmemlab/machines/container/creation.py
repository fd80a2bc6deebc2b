"""Containers that Compose does not make: throwaway ones, and those of users' own topologies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import docker
from docker.errors import DockerException
from docker.models.containers import Container

from pmemlab.errors import LabError
from pmemlab.machines.container import labels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.compose_file import service
from pmemlab.machines.container.inventory import owner_label, remove_container
from pmemlab.machines.container.kvm import KVM_DEVICE
from pmemlab.machines.container.user_topology import (
    copy_topology_into,
    is_lab_topology,
    topology_label,
)
from pmemlab.topology import Topology

__all__ = ["create_machine", "create_options", "start_throwaway"]

_NANOSECONDS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9}


def start_throwaway(
    client: docker.DockerClient, clone: Clone, topology: Topology, image: str, kvm: bool
) -> Container:
    """Starts a container for this process alone. Raises `LabError` if the engine refuses.

    The caller must remove the container. If the caller dies first, `sweep_abandoned` removes it.
    """
    container = create_machine(client, clone, topology, image, kvm, owner=owner_label())
    try:
        container.start()
    except DockerException as error:
        remove_container(container)
        raise _refusal_error(topology, error) from error
    return container


def create_machine(
    client: docker.DockerClient,
    clone: Clone,
    topology: Topology,
    image: str,
    kvm: bool,
    owner: str | None = None,
) -> Container:
    """Creates a container as compose.yaml describes, or would describe, the topology's service.

    A user's own topology is copied into the container. Raises `LabError` if the engine refuses.

    kvm: whether to give the container KVM.
    owner: the process that must remove the container; None for a machine of the clone's lab.
    """
    described = service(topology)
    options = create_options(described)
    if kvm:
        options["devices"] = [KVM_DEVICE]
    own_labels = {labels.CLONE: clone.project, labels.MACHINE: topology.name}
    if owner is None:
        options["name"] = f"{clone.project}-{topology.name}-1"  # as Compose names its own
    else:
        own_labels[labels.OWNER] = owner
    is_own = is_lab_topology(topology)
    if not is_own:
        own_labels[labels.TOPOLOGY] = topology_label(topology)
    container = None
    try:
        container = client.containers.create(
            image, list(described["command"]), labels=own_labels, **options
        )
        if not is_own:
            copy_topology_into(container, topology)
    except DockerException as error:
        if container is not None:
            remove_container(container)
        raise _refusal_error(topology, error) from error
    return container


def _refusal_error(topology: Topology, error: DockerException) -> LabError:
    return LabError(f"no container can be started for machine {topology.name}: {error}")


def create_options(service: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a service of compose.yaml as arguments of the Docker SDK.

    Raises `LabError` for a field that has no translation and would be lost.
    """
    options: dict[str, Any] = {}
    for field, value in service.items():
        if field in _NOT_TRANSLATED:
            continue
        if field not in _TRANSLATIONS:
            raise LabError(f"compose.yaml: {field}: can be given to Compose alone")
        name, translate = _TRANSLATIONS[field]
        options[name] = translate(value)
    return options


def _unchanged(value: Any) -> Any:
    return value


def _health_check(check: Mapping[str, Any]) -> dict[str, Any]:
    durations = {name: _duration_ns(check[name]) for name in ("interval", "timeout")}
    return {"test": check["test"], "retries": check["retries"], **durations}


def _duration_ns(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s|m)", text)
    if match is None:
        raise LabError(f"compose.yaml: {text!r} is no duration like 500ms, 3s or 2m")
    return int(match[1]) * _NANOSECONDS[match[2]]


def _mounts(mounts: list[str]) -> dict[str, str]:
    return {path: options for path, _, options in (mount.partition(":") for mount in mounts)}


# Field of a service -> argument of the SDK, and the function that translates its value.
_TRANSLATIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cap_drop": ("cap_drop", _unchanged),
    "healthcheck": ("healthcheck", _health_check),
    "mem_limit": ("mem_limit", _unchanged),
    "network_mode": ("network", _unchanged),
    "pids_limit": ("pids_limit", _unchanged),
    "security_opt": ("security_opt", _unchanged),
    "tmpfs": ("tmpfs", _mounts),
}
# Fields that `create_machine` sets itself, or that mean nothing for a container that is killed.
_NOT_TRANSLATED = ("command", "image", "labels", "restart", "stop_grace_period")
