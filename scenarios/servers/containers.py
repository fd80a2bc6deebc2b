"""The servers of compose.servers.yaml, for tests. Programs run in the head's container, and the
evidence comes from each container's kernel and from the Docker engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container
from evidence import Shard

from pmemlab.errors import MissingRequirementError
from pmemlab.machines.container.clone import find_clone
from pmemlab.machines.container.connection import connect
from pmemlab.machines.container.image import current_image
from pmemlab.machines.container.servers import (
    HEAD,
    HEAD_ADDRESS,
    servers_down,
    servers_up,
    wait_until_ready,
)

PMEM = Path("/mnt/pmem0")

_PROGRAMS = "/srv"
_SHARED = "/shared"

# When the client of `docker exec` is gone, the engine lets the command run on, but closes its
# standard input. This script then ends the command.
_UNTIL_HANG_UP = """
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
{ cat <&3 >/dev/null; kill -KILL $command; } >/dev/null 2>&1 &
exec 3<&-
wait $command
"""


@dataclasses.dataclass(frozen=True)
class ServerContainer:
    """A server in a container, whose processes have their own ids and paths."""

    container: Container
    pmem: Path = PMEM

    @property
    def addresses(self) -> set[str]:
        self.container.reload()
        networks = self.container.attrs["NetworkSettings"]["Networks"]
        return {network["IPAddress"] for network in networks.values()}

    def runs(self, shard: Shard) -> bool:
        return shard["node"] in self.addresses

    def smaps(self, process: int) -> str:
        return self.read(f"/proc/{process}/smaps")

    def file_system(self, folder: Path) -> str | None:
        """Returns the file system mounted at the folder; None if nothing is mounted there."""
        for line in self.read("/proc/mounts").splitlines():
            _, mounted_at, kind, *_ = line.split()
            if mounted_at == str(folder):
                return kind
        return None

    def received_bytes(self) -> int:
        return int(self.read("/sys/class/net/eth0/statistics/rx_bytes"))

    def read(self, path: str) -> str:
        done = self.container.exec_run(["cat", path])
        assert done.exit_code == 0, done.output
        return str(done.output, errors="replace")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that runs in a container. output: the file with its output so far."""

    process: subprocess.Popen[bytes]
    output: Path

    def wait(self, timeout: float) -> int:
        """Returns the exit status. Raises `subprocess.TimeoutExpired`, and lets it run on."""
        return self.process.wait(timeout)

    def output_text(self) -> str:
        return self.output.read_text(errors="replace")[-6000:]


class Containers:
    """The containers of a cluster. head: where programs run. servers: the containers with PMem."""

    def __init__(self, client: docker.DockerClient, services: dict[str, Container]) -> None:
        self._client = client
        self.head = services[HEAD]
        self.servers = [ServerContainer(services[name]) for name in services if name != HEAD]

    def copy_programs(self, files: Iterable[Path]) -> None:
        """Copies programs, and the modules that they import, into the head's container."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                archive.add(file, file.name)
        assert self.head.put_archive(_PROGRAMS, packed.getvalue())

    @contextlib.contextmanager
    def running(self, program: str, folder: str) -> Iterator[Program]:
        """Yields a program copied by `copy_programs`, with a folder that all containers share."""
        path = f"{_SHARED}/{folder}"
        assert self.head.exec_run(["mkdir", path]).exit_code == 0
        own = ["env", f"RAY_ADDRESS={HEAD_ADDRESS}", "python", f"{_PROGRAMS}/{program}", path]
        with (
            tempfile.NamedTemporaryFile() as output,
            # Leaving this context closes the program's standard input, and waits for the program.
            subprocess.Popen(
                ["docker", "exec", "-i", self.head.name, "sh", "-c", _UNTIL_HANG_UP, "sh", *own],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            yield Program(process, Path(output.name))

    def has_shared_file(self, file: str) -> bool:
        """Returns whether the shared folder has the file."""
        return self.head.exec_run(["test", "-e", f"{_SHARED}/{file}"]).exit_code == 0

    def touch(self, file: str) -> None:
        assert self.head.exec_run(["touch", f"{_SHARED}/{file}"]).exit_code == 0

    def fetch(self, folder: str, to: Path) -> None:
        """Copies a shared folder with its files and folders to `to/folder`."""
        chunks, _ = self.head.get_archive(f"{_SHARED}/{folder}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(to, filter="data")

    def shards(self) -> Collection[Shard]:
        done = self.head.exec_run(
            ["python", "-m", "embstore.server", "status", "--json"],
            environment={"RAY_ADDRESS": HEAD_ADDRESS},
            demux=True,
        )
        stdout, stderr = done.output
        assert done.exit_code == 0, stderr
        found: list[Shard] = json.loads(stdout)["shards"]
        return found

    def networks(self) -> list[Any]:
        """Returns the networks of all containers."""
        names = {
            name
            for container in (self.head, *(server.container for server in self.servers))
            for name in container.attrs["NetworkSettings"]["Networks"]
        }
        return [self._client.networks.get(name) for name in sorted(names)]


@contextlib.contextmanager
def containers() -> Iterator[Containers]:
    """Yields containers for one test module. Skips it if no engine has this clone's image."""
    try:
        client = connect()
    except MissingRequirementError as error:
        pytest.skip(f"needs a Docker engine: {error}")
    clone = find_clone(Path(__file__).parent)
    if current_image(client, clone, "servers") is None:
        pytest.skip("needs the present servers' image: make servers-up ARGS=--image-only")
    project = f"{clone.servers_project}-test"
    try:
        yield Containers(client, servers_up(project=project))
    finally:
        servers_down(project)


def wait_for(program: Program, is_so: Callable[[], bool], within_s: float) -> None:
    """Waits until `is_so()`. Fails if the program ends before, or if it takes longer."""
    deadline = time.monotonic() + within_s
    while not is_so():
        try:
            status = program.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            assert time.monotonic() < deadline, f"after {within_s:g} s: {program.output_text()}"
        else:
            pytest.fail(f"it ended with status {status}: {program.output_text()}")


def start_again(server: ServerContainer) -> None:
    server.container.start()
    wait_until_ready("server", server.container)
