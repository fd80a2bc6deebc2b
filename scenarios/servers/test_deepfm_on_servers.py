"""Two workers train DeepFM, with tables in two servers' PMem, to the results of one process."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import ServerProcesses, assert_rows_lie_in_pmem
from servers import Server, free_port, server, sessions_folder, status

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("torch", reason="needs PyTorch: pip install 'embstore[torch]'")
pytest.importorskip("keras", reason="needs Keras: pip install 'embstore[keras]'")
deepfm: Any = importlib.import_module("deepfm")
trained_here: Any = importlib.import_module("trained_here")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

_PROGRAM = Path(__file__).with_name("train_on_servers.py")
# Limit for a program that hangs: beside other work, training takes several times as long.
_TRAINED_WITHIN_S = 300.0

# A program with its table in the DRAM of the servers.
_IN_DRAM = """
import sys, time
from pathlib import Path
import numpy as np
import embstore as es

folder = Path(sys.argv[1])
with es.get_embedding_variable("items", 8, optimizer=es.optimizers.SGD(0.1), shards=2) as items:
    items.apply_gradients(np.arange(1000), np.ones((1000, 8), np.float32))
    (folder / "report.json").write_text("{}")
    while not (folder / "seen").exists():
        time.sleep(0.05)
"""


class Cluster:
    """A head, where workers run, and two servers with PMem, where no worker runs."""

    def __init__(self, folder: Path, head: Server, servers: list[Server]) -> None:
        self.folder = folder
        self.head = head
        self._servers = servers

    def servers(self) -> list[ServerProcesses]:
        found = []
        for each in self._servers:
            assert each.pmem is not None
            found.append(ServerProcesses(each.everything(), each.pmem))
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(sessions_folder())
        places = []
        for _ in range(2):
            places.append(tempfile.mkdtemp(prefix="pmem-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, places[-1], ignore_errors=True)
        head = stack.enter_context(server(folder, "--bind_ip", f"127.0.0.1:{free_port()}"))
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"CPU": 0}))
            servers = [
                stack.enter_context(
                    server(
                        folder,
                        *("--master_endpoint", head.address, "--bind_ip", "127.0.0.1"),
                        *("--pmem", place, "--cache_size", "1"),
                    )
                )
                for place in places
            ]
        yield Cluster(folder, head, servers)


@dataclasses.dataclass(frozen=True)
class Trained:
    """The program's report of its shards, and the report of `status` at that time."""

    report: dict[str, Any]
    shards: list[dict[str, Any]]
    servers: list[ServerProcesses]


@contextlib.contextmanager
def trained(cluster: Cluster, folder: Path, *program: str) -> Iterator[Trained]:
    """Trains with a Python program on the servers. Its shards exist until this context is left."""
    environment = {
        **os.environ,
        "RAY_ADDRESS": cluster.head.address,
        "RAY_TMPDIR": str(cluster.folder),
    }
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *program, str(folder)],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + _TRAINED_WITHIN_S
        while not (folder / "report.json").exists():
            assert process.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < deadline, (folder / "output").read_text()
            time.sleep(0.05)
        job_status = status(cluster.folder, cluster.head.address)
        report = json.loads((folder / "report.json").read_text())
        yield Trained(report, job_status["shards"], cluster.servers())
        (folder / "seen").touch()
        assert process.wait(timeout=120) == 0, (folder / "output").read_text()
    finally:
        process.kill()
        process.wait()


def test_rows_and_weights_are_those_of_one_process_and_lie_in_each_servers_pmem(
    cluster: Cluster, tmp_path: Path
) -> None:
    with trained(cluster, tmp_path, str(_PROGRAM)) as run:
        rows = {name: dict(np.load(tmp_path / f"{name}.npz")) for name in deepfm.TABLES}
        assert_rows_lie_in_pmem(
            run.servers, run.shards, sum(len(of["keys"]) for of in rows.values())
        )
        one, other = run.servers
        assert not {*run.report["workers"]} & {*one.processes, *other.processes}, (
            "workers elsewhere"
        )
        swapped = [
            dataclasses.replace(one, pmem=other.pmem),
            dataclasses.replace(other, pmem=one.pmem),
        ]
        with pytest.raises(AssertionError, match="the kernel has 0 of its pages there"):
            assert_rows_lie_in_pmem(swapped, run.shards, 0)
    trained_here.assert_trained_as_here(tmp_path)


def test_servers_that_do_not_use_their_pmem_are_told_from_those_that_do(
    cluster: Cluster, tmp_path: Path
) -> None:
    with trained(cluster, tmp_path, "-c", _IN_DRAM) as run:
        all_processes = set().union(*(each.processes for each in run.servers))
        everywhere = cluster.head.everything() - all_processes
        one, other = run.servers
        servers = [ServerProcesses({*one.processes, *everywhere}, one.pmem), other]
        with pytest.raises(AssertionError, match="has no tier in PMem"):
            assert_rows_lie_in_pmem(servers, run.shards, 0)
