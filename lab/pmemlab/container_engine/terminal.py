"""A terminal here, for a command in a machine of the running lab."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from pmemlab.clone import find_clone
from pmemlab.container_engine.connection import connect
from pmemlab.container_engine.health import STATE_FOLDER
from pmemlab.container_engine.inventory import find_machines
from pmemlab.errors import MissingRequirementError

__all__ = ["run_in_container"]


def run_in_container(topology: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run it by `docker exec --tty`; its exit status.

    Raises `MissingRequirementError` where there is no `docker` command.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise MissingRequirementError("the command `docker`, for a terminal", "make docker")
    container = find_machines(connect(), find_clone())[topology]
    settings = [f"--env={name}={value}" for name, value in env.items()]
    attach = ["pmemlab", "shell", "--state-dir", STATE_FOLDER, *settings, "--", *argv]
    command = [docker, "exec", "--interactive", "--tty", str(container.name), *attach]
    return subprocess.run(command, check=False).returncode
