"""Finds and calls Docker Compose: version 2 is a plugin of `docker`, version 1 a program."""

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
    """Compose of either version, called for one project of a clone.

    files: Compose files; a later file overrides an earlier one.
    environment: values of the variables in the files.
    Raises `MissingRequirementError` if there is no Compose.
    """

    def __init__(
        self, clone: Clone, *files: Path, project: str, environment: Mapping[str, str]
    ) -> None:
        self._command = [*compose_command()]
        for file in files:
            self._command += ["--file", str(file)]
        self._clone = clone
        # Compose's first version ignores DOCKER_CONTEXT.
        context = None if os.environ.get("DOCKER_HOST") else context_in_use()
        self._environment = {
            **os.environ,
            **(context.environment if context else {}),
            "COMPOSE_PROJECT_NAME": project,
            **environment,
        }

    def run(self, *arguments: str) -> None:
        """Runs a Compose command. Raises `LabError` with Compose's output if the command fails."""
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
    """Returns the command. Raises `MissingRequirementError` if there is no Compose."""
    for command in _CANDIDATES:
        if _is_usable(command):
            return command
    raise MissingRequirementError("there is no Docker Compose here", "make docker")


def _is_usable(command: Sequence[str]) -> bool:
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
