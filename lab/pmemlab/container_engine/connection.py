"""Reaching the Docker engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import docker
from docker.context import ContextAPI
from docker.errors import ContextException, DockerException

from pmemlab.errors import LabError, MissingRequirementError

__all__ = ["connect"]

_SOCKET = Path("/var/run/docker.sock")


def connect() -> docker.DockerClient:
    """A client of the engine that the `docker` command speaks with: of DOCKER_HOST, else of the
    current context, else of the local engine; and where that one has no socket, of this user's
    rootless engine.

    Raises `MissingRequirementError` where none answers, with the command that gets one.
    """
    context = _context()
    try:
        if context is not None:
            host, tls = context
            client = docker.DockerClient(base_url=host, tls=tls)
        else:
            if "DOCKER_HOST" not in os.environ and not _SOCKET.exists():
                _take_rootless()
            client = docker.from_env()
        client.ping()
    except DockerException as error:
        raise _explain(error) from None
    return client


def _context() -> tuple[str, Any] | None:
    """Endpoint and TLS settings of the context in use, which the SDK doesn't ask for by itself.

    None for the default. Raises `LabError` for one that can't be used.
    """
    if "DOCKER_HOST" in os.environ:
        return None
    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context = ContextAPI.get_context(name)
    except ContextException as error:
        raise LabError(f"Docker's context {name or 'in use'} can't be read: {error}") from error
    if context is None:
        raise LabError(f"Docker has no context {name or 'of the name in its config.json'}")
    if context.name == "default":
        return None
    host = context.endpoints.get("docker", {}).get("Host", "")
    if not host or host.startswith("ssh://"):
        raise LabError(
            f"Docker's context {context.name}: an engine at {host or 'no address'} can't be used; "
            "set DOCKER_HOST or `docker context use` another"
        )
    return host, context.TLSConfig or False


def _take_rootless() -> None:
    """For this process and the commands that it starts, `docker` among them."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    socket = Path(runtime) / "docker.sock"
    if socket.is_socket():
        os.environ["DOCKER_HOST"] = f"unix://{socket}"


def _explain(error: DockerException) -> LabError:
    if _is_caused_by(error, PermissionError):
        return MissingRequirementError(
            "a Docker engine runs, but this user may not use it",
            "sudo usermod -aG docker $USER, and log in again",
        )
    return MissingRequirementError("no Docker engine answers", "make docker")


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error of that kind lies anywhere beneath error.

    The client's libraries nest the operating system's error in arguments as well as in causes.
    """
    beneath = (error.__cause__, error.__context__, *error.args)
    return isinstance(error, kind) or any(
        _is_caused_by(other, kind) for other in beneath if isinstance(other, BaseException)
    )
