"""Which Compose there is: the second version is a plugin of `docker`, the first a program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.machines.container.clone import Clone
from pmemlab.machines.container.context import context_in_use

__all__ = ["Compose", "compose_command"]

_CANDIDATES = (("docker", "compose"), ("docker-compose",))


class Compose:
    """Compose of either version, as it is called for one project of a clone's.

    files: Compose files; what a later one says goes before what an earlier one does.
    environment: what variables in them stand for.
    Raises `MissingRequirementError` where there is no Compose.
    """

    def __init__(
        self, clone: Clone, *files: Path, project: str, environment: Mapping[str, str]
    ) -> None:
        self._command = [*compose_command()]
        for file in files:
            self._command += ["--file", str(file)]
        self._clone = clone
        # Compose's first version doesn't look at DOCKER_CONTEXT.
        context = None if os.environ.get("DOCKER_HOST") else context_in_use()
        self._environment = {
            **os.environ,
            **(context.environment if context else {}),
            "COMPOSE_PROJECT_NAME": project,
            **environment,
        }

    def run(self, *arguments: str) -> None:
        """Raises `LabError` with what Compose wrote, where it fails."""
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=self._clone.root,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            command = " ".join((*self._command, *arguments))
            raise LabError(f"{command} failed (exit status {done.returncode}):\n{done.stdout}")


def compose_command() -> Sequence[str]:
    """Raises `MissingRequirementError` where there is no Compose."""
    for command in _CANDIDATES:
        if _answers(command):
            return command
    raise MissingRequirementError("there is no Docker Compose here", "make docker")


def _answers(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            [*command, "version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0
