"""The state of the machine in a container: starting, proved, or dead."""

from __future__ import annotations

import json
import time

from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from requests import RequestException

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.state_folder import POWER_CUT_FILE, PROOF_FILE
from pmemlab.proof import Proof

__all__ = [
    "STATE_FOLDER",
    "has_ended",
    "is_proved",
    "is_without_power",
    "last_log_lines",
    "read_proof",
    "wait_until_proved",
]

STATE_FOLDER = "/run/pmemlab"
"""The folder in a container where `pmemlab machine serve` keeps its proof (see compose.yaml)."""

_POLL_S = 0.25
_LOG_LINES = 40


def has_ended(container: Container) -> bool:
    """Returns whether the container has run and runs no more, or is gone altogether."""
    try:
        container.reload()
    except NotFound:
        return True
    return container.status not in ("created", "running")


def is_without_power(container: Container) -> bool:
    """Returns whether the container runs while its machine is without power."""
    if container.status != "running":
        return False
    return _has_state_file(container, POWER_CUT_FILE)


def _has_state_file(container: Container, state_file: str) -> bool:
    found = container.exec_run(["test", "-e", f"{STATE_FOLDER}/{state_file}"])
    return bool(found.exit_code == 0)


def is_proved(container: Container) -> bool:
    """Returns whether the machine has passed its proof; False while it is still starting.

    Raises `MachineDiedError` with the end of the log if the machine has ended or its time is up.
    """
    if has_ended(container):
        raise MachineDiedError(f"container {container.name} has ended", last_log_lines(container))
    health = container.attrs["State"].get("Health", {}).get("Status")
    if health == "unhealthy":
        if _has_state_file(container, PROOF_FILE):
            raise MachineDiedError(
                f"container {container.name} was proved, and doesn't answer now; if it was paused, "
                "it does so again in a minute",
                last_log_lines(container),
            )
        raise MachineDiedError(
            f"container {container.name} was not proved in time", last_log_lines(container)
        )
    return bool(health == "healthy")


def wait_until_proved(container: Container) -> None:
    """Waits for the proof. Raises as `is_proved` does; the health check sets the time limit."""
    while not is_proved(container):
        time.sleep(_POLL_S)


def read_proof(container: Container) -> Proof:
    """Returns the proof that `pmemlab machine serve` wrote. Raises `LabError`."""
    path = f"{STATE_FOLDER}/{PROOF_FILE}"
    output = container.exec_run(["cat", path]).output
    assert isinstance(output, bytes)  # not a stream
    try:
        return Proof(**json.loads(output))
    except (ValueError, TypeError):
        raise LabError(f"container {container.name}: {path} can't be read: {output!r}") from None


def last_log_lines(container: Container) -> str:
    try:
        return container.logs(tail=_LOG_LINES).decode(errors="replace").rstrip()
    except (DockerException, RequestException):  # the container is gone, and its log too
        return ""
