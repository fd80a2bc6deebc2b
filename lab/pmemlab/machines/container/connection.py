"""Connects to the Docker engine."""

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

__all__ = ["connect", "engine_errors_as_lab_errors"]

_SOCKET = Path("/var/run/docker.sock")


def connect() -> docker.DockerClient:
    """Returns a client of the engine that the `docker` command uses: that of DOCKER_HOST, else of
    the current context, else the local engine, else this user's rootless engine.

    Raises `MissingRequirementError` if no engine answers, with the command that gets one.
    """
    chosen_engine = ""
    try:
        if host := os.environ.get("DOCKER_HOST"):
            chosen_engine = f"DOCKER_HOST, {host}"
            client = docker.from_env()
        elif context := context_in_use():
            chosen_engine = f"Docker's context {context.name}, {context.host}"
            client = docker.DockerClient(base_url=context.host, tls=context.tls or False)
        else:
            client = docker.DockerClient(base_url=_local())
        client.ping()
    except (DockerException, RequestException) as error:
        raise _connection_error(error, chosen_engine) from None
    return client


@contextmanager
def engine_errors_as_lab_errors() -> Iterator[None]:
    """Raises `LabError` if the engine refuses a request or doesn't answer in time."""
    try:
        yield
    except (DockerException, RequestException) as error:
        raise LabError(f"the Docker engine: {error}") from error


def _local() -> str:
    """Returns the local engine's address, or the rootless engine's if the former has no socket."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    rootless = Path(runtime) / "docker.sock"
    if _SOCKET.exists() or not rootless.is_socket():
        return f"unix://{_SOCKET}"
    # Also for the commands that this process starts, `docker` among them.
    os.environ["DOCKER_HOST"] = f"unix://{rootless}"
    return os.environ["DOCKER_HOST"]


def _connection_error(error: DockerException | RequestException, chosen_engine: str) -> LabError:
    """Returns the error to raise. chosen_engine: the engine that the user chose, if any."""
    if _is_caused_by(error, PermissionError):
        return MissingRequirementError(
            "a Docker engine runs, but this user may not use it",
            "sudo usermod -aG docker $USER, and log in again",
        )
    if chosen_engine:
        return MissingRequirementError(
            f"no Docker engine answers at {chosen_engine}", "start it, or choose another"
        )
    return MissingRequirementError("no Docker engine answers", "make docker")


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Returns whether an error of this kind is among the causes of `error`.

    The client's libraries nest the operating system's error in arguments as well as in causes.
    """
    beneath = (error.__cause__, error.__context__, *error.args)
    return isinstance(error, kind) or any(
        _is_caused_by(other, kind) for other in beneath if isinstance(other, BaseException)
    )
