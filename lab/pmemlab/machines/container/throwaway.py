"""Containers that are started where no lab runs, for one user, and removed after."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import docker
import yaml
from docker.errors import DockerException
from docker.models.containers import Container

from pmemlab.errors import LabError
from pmemlab.machines.container import labels
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.inventory import owner_label, remove
from pmemlab.machines.container.kvm import KVM_DEVICE

__all__ = ["create_options", "start_throwaway"]

_NANOSECONDS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9}


def start_throwaway(
    client: docker.DockerClient, clone: Clone, topology: str, image: str, kvm: bool
) -> Container:
    """Start a container as compose.yaml describes the topology's service.

    kvm: whether to give it KVM. Raises `LabError` where the engine refuses.

    It is the caller's to remove. If the caller dies first, the next one who looks removes it.
    """
    service = _service(clone, topology)
    options = create_options(service)
    if kvm:
        options["devices"] = [KVM_DEVICE]
    own_labels = {
        labels.CLONE: clone.project,
        labels.MACHINE: topology,
        labels.OWNER: owner_label(),
    }
    container = None
    try:
        container = client.containers.create(
            image, list(service["command"]), labels=own_labels, **options
        )
        container.start()
    except DockerException as error:
        if container is not None:
            remove(container)
        raise LabError(f"no container can be started for machine {topology}: {error}") from error
    return container


def create_options(service: Mapping[str, Any]) -> dict[str, Any]:
    """What a service of compose.yaml says, as arguments of the Docker SDK.

    Raises `LabError` for a field that would get lost on the way.
    """
    options: dict[str, Any] = {}
    for field, value in service.items():
        if field in _ELSEWHERE:
            continue
        if field not in _TRANSLATIONS:
            raise LabError(f"compose.yaml: {field}: is not known for throwaway containers")
        name, translate = _TRANSLATIONS[field]
        options[name] = translate(value)
    return options


def _service(clone: Clone, topology: str) -> dict[str, Any]:
    services = yaml.safe_load(clone.compose_file.read_text(encoding="utf-8"))["services"]
    if topology not in services:
        raise LabError(
            f"{clone.compose_file}: there is no service for machine {topology!r}, "
            f"only for {', '.join(sorted(services))}; use --machine guest for others"
        )
    return dict(services[topology])


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


# Field of a service -> argument of the SDK, and how its value is put there.
_TRANSLATIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cap_drop": ("cap_drop", _unchanged),
    "healthcheck": ("healthcheck", _health_check),
    "mem_limit": ("mem_limit", _unchanged),
    "network_mode": ("network", _unchanged),
    "pids_limit": ("pids_limit", _unchanged),
    "security_opt": ("security_opt", _unchanged),
    "tmpfs": ("tmpfs", _mounts),
}
# Said by `start_throwaway` itself, or of no meaning for a container that is killed.
_ELSEWHERE = ("command", "image", "labels", "restart", "stop_grace_period")
