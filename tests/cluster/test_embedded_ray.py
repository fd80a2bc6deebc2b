"""A program without a given cluster starts Ray itself, and Ray ends with the program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import assert_gone, command, descendants

import embstore as es
from embstore.cluster import sharded_variable
from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.server.servers import Servers

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import sys
import numpy as np
import embstore as es

assert "ray" not in sys.modules, "import embstore takes Ray's seconds"
storage = es.StorageOption(
    es.StorageType.DRAM_SSDHASH, [None, sys.argv[1]], [16 * 48, 1 << 20],
    ssdhash_option=es.SSDHashOption(keep_files=True),
)
var = es.get_embedding_variable(
    "var", 3, optimizer=es.optimizers.Adam(0.1), shards=2,
    ev_option=es.EmbeddingVariableOption(storage_option=storage),
)
print("rows before", var.total_count()[0])
var.apply_gradients(np.arange(100), np.ones((100, 3), np.float32))
import ray
print("nodes", [node["NodeManagerAddress"] for node in ray.nodes()])
sys.stdout.flush()
sys.stdin.readline()
"""


def run(folder: Path, how: str) -> str:
    """Returns the program's output, after it has ended or was killed. No process of it is left."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    out = []
    started: set[int] = set()
    idle: list[str] = []
    for line in program.stdout:
        out.append(line)
        if line.startswith("nodes"):
            started = descendants(program.pid)
            idle = [
                name
                for name in map(command, started)
                if re.search(r"/(dashboard|monitor)\.py", name)
            ]
            if how == "killed":
                program.kill()
            else:
                program.stdin.write("\n")
                program.stdin.flush()
    _, err = program.communicate(timeout=300)
    assert program.returncode == (-signal.SIGKILL if how == "killed" else 0), err
    assert "wasn't closed" not in err
    assert len(started) >= 4, "Ray's server, its raylet, and two shards"
    assert idle == [], "they do nothing for a program of its own"
    assert_gone(started)
    return "".join(out)


@pytest.mark.long
def test_kept_rows_are_closed_as_the_program_ends_and_no_process_is_left(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    ended = run(tmp_path, "ends")
    assert "nodes ['127.0.0.1']" in ended
    with kept_variable(tmp_path) as var:
        assert var.total_count() == (100, 3)
    assert "rows before 100" in run(tmp_path, "killed")


def kept_variable(folder: Path) -> es.EmbeddingVariable:
    """Returns the program's variable, in this process."""
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, folder],
        [16 * 48, 1 << 20],
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )
    return es.get_embedding_variable(
        "var",
        3,
        optimizer=es.optimizers.Adam(0.1),
        partition_num=2,
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
    )


def test_without_ray_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["ray"] = None
import embstore as es
try:
    es.get_embedding_variable("var", 3, shards=2)
except es.errors.MissingLibraryError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert "pip install 'embstore[cluster]'" in told.stdout


class SlowRay:
    """Stands in for the module `ray`, with a slow start."""

    def __init__(self) -> None:
        self.starts = 0

    def is_initialized(self) -> bool:
        return self.starts > 0

    def start(self, *_arguments: Any, **_options: Any) -> None:
        time.sleep(0.1)
        self.starts += 1

    def get_runtime_context(self) -> SlowRay:
        return self

    def get_node_id(self) -> str:
        return "node"

    def get_job_id(self) -> str:
        return "job"


def test_threads_that_make_the_first_tables_at_once_share_one_ray_and_its_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = SlowRay()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "library", lambda: ray)
    monkeypatch.setattr(ray_cluster, "start_on_loopback", ray.start)
    monkeypatch.setattr(sharded_variable, "_program_servers", None)

    def make_slowly(*arguments: Any) -> Any:
        time.sleep(0.1)
        return Servers(*arguments)

    monkeypatch.setattr(sharded_variable, "Servers", make_slowly)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(sharded_variable._servers_of_program) for _ in range(4)]
        servers = {id(one.result()) for one in asked}
    assert ray.starts == 1
    assert len(servers) == 1


PRINTING = """
import time
import embstore as es


def function(worker):
    print("worker", worker.rank, "is here")


if __name__ == "__main__":
    es.cluster.run(function, workers=2)
    time.sleep(3)
"""


@pytest.mark.long
def test_the_program_prints_the_output_of_its_workers() -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    told = subprocess.run(
        [sys.executable, "-c", PRINTING],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    assert sorted(re.findall(r"worker \d is here", told.stdout)) == [
        "worker 0 is here",
        "worker 1 is here",
    ]


CLOSED_AFTERWARDS = """
import numpy as np
import embstore as es
import ray

var = es.get_embedding_variable("var", 3, optimizer=es.optimizers.Adam(0.1), shards=2)
var.apply_gradients([1], np.ones((1, 3), np.float32))
ray.shutdown()
for use in (var.total_count, lambda: var.lookup([1]), var.close, var.close):
    try:
        use()
    except es.errors.ShardLostError as error:
        print(error)
assert not ray.is_initialized()
"""


@pytest.mark.long
def test_closing_a_table_after_ray_was_shut_down_starts_no_ray() -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_AFTERWARDS],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "shut down" in done.stdout
    assert "Traceback" not in done.stderr
