"""Reaching the Docker engine."""

from __future__ import annotations

import docker
from docker.errors import DockerException

from pmemlab.errors import LabError, MissingRequirementError

__all__ = ["connect"]


def connect() -> docker.DockerClient:
    """A client of the engine that DOCKER_HOST names, or of the local one.

    Raises `MissingRequirementError` where none answers, with the command that gets one.
    """
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        raise _explain(error) from None
    return client


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
