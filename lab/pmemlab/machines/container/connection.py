"""Reaching the Docker engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import DockerException
from requests import RequestException

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.container.context import context_in_use

__all__ = ["connect", "told_as_lab_errors"]

_SOCKET = Path("/var/run/docker.sock")


def connect() -> docker.DockerClient:
    """A client of the engine that the `docker` command speaks with: of DOCKER_HOST, else of the
    current context, else of the local engine; and where that one has no socket, of this user's
    rootless engine.

    Raises `MissingRequirementError` where none answers, with the command that gets one.
    """
    wanted = ""
    try:
        if host := os.environ.get("DOCKER_HOST"):
            wanted = f"DOCKER_HOST, {host}"
            client = docker.from_env()
        elif context := context_in_use():
            wanted = f"Docker's context {context.name}, {context.host}"
            client = docker.DockerClient(base_url=context.host, tls=context.tls or False)
        else:
            client = docker.DockerClient(base_url=_local())
        client.ping()
    except (DockerException, RequestException) as error:
        raise _explain(error, wanted) from None
    return client


@contextmanager
def told_as_lab_errors() -> Iterator[None]:
    """Raises `LabError` where the engine refuses something, or doesn't answer in time."""
    try:
        yield
    except (DockerException, RequestException) as error:
        raise LabError(f"the Docker engine: {error}") from error


def _local() -> str:
    """The local engine's address; where it has no socket, this user's rootless one's."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    rootless = Path(runtime) / "docker.sock"
    if _SOCKET.exists() or not rootless.is_socket():
        return f"unix://{_SOCKET}"
    # For the commands that this process starts too, `docker` among them.
    os.environ["DOCKER_HOST"] = f"unix://{rootless}"
    return os.environ["DOCKER_HOST"]


def _explain(error: DockerException | RequestException, wanted: str) -> LabError:
    """wanted: where the user wants the engine to be, if they said so."""
    if _is_caused_by(error, PermissionError):
        return MissingRequirementError(
            "a Docker engine runs, but this user may not use it",
            "sudo usermod -aG docker $USER, and log in again",
        )
    if wanted:
        return MissingRequirementError(
            f"no Docker engine answers at {wanted}", "start it, or choose another"
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
