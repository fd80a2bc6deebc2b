"""A container without Docker: fakes of the `docker` command and of the guest in the container.

The relay between them is real.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest
from docker.errors import NotFound
from docker.models.containers import Container

from pmemlab.machines.container.machine import ContainerMachine
from pmemlab.machines.lease import Lease
from pmemlab.proof import Proof
from pmemlab.topology import load_topology

LAB = Path(__file__).parents[2] / "lab"
NAME = "lab_dram_1"
PROOF = Proof("dram", "tcg", {"nodes": [0]}, {"nodes": [0]})

# Runs `docker exec --interactive NAME python -m pmemlab.machines.guest.relay FOLDER` locally.
_PROGRAM = f"""#!/bin/sh
relay="python -m pmemlab.machines.guest.relay /run/pmemlab"
[ "$*" = "exec --interactive {NAME} $relay" ] || exit 64
echo $$ > "$FAKE_DOCKER_STATE/docker.pid"
exec "{sys.executable}" -m pmemlab.machines.guest.relay "$FAKE_DOCKER_STATE"
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Replaces `docker` by a program that connects to the guest that is served in the folder.

    Returns the program's path.
    """
    program = folder / "bin" / "docker"
    program.parent.mkdir(exist_ok=True)
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{LAB}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("FAKE_DOCKER_STATE", str(folder))
    return program


class Engine:
    """A fake Docker engine with one container, whose state a test sets and reads."""

    def __init__(self) -> None:
        self.status = "running"
        self.health = "healthy"
        self.exists = True
        self.removed = False
        self.has_power = True
        self.has_proof = False
        self.restarts = 0
        self.container = cast(Container, _Container(self))
        self.client = cast(docker.DockerClient, SimpleNamespace(close=lambda: None))


class _Container:
    name = NAME
    id = "c0ffee"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.labels: dict[str, str] = {}

    @property
    def status(self) -> str:
        return self._engine.status

    @property
    def attrs(self) -> dict[str, Any]:
        return {"State": {"Health": {"Status": self._engine.health}}}

    def reload(self) -> None:
        if not self._engine.exists:
            raise NotFound("no such container")

    def logs(self, tail: int) -> bytes:
        return f"the last {tail} lines".encode()

    def exec_run(self, argv: Sequence[str]) -> SimpleNamespace:
        if argv[0] == "test" and argv[-1].endswith("/proof.json"):
            return SimpleNamespace(exit_code=int(not self._engine.has_proof))
        if argv[0] == "test":
            return SimpleNamespace(exit_code=int(self._engine.has_power))
        return SimpleNamespace(output=json.dumps(asdict(PROOF)).encode())

    def restart(self, timeout: int) -> None:
        assert timeout == 0
        self._engine.restarts += 1
        self._engine.has_power = True
        self._engine.status = "running"

    def remove(self, **_: bool) -> None:
        self._engine.removed, self._engine.exists = True, False


def machine_of(engine: Engine, owned: bool = False, lease: Lease | None = None) -> ContainerMachine:
    dram = load_topology("dram")
    return ContainerMachine(engine.client, dram, engine.container, owned, lease)
