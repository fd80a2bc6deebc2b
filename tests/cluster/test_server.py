"""Servers started from the command line: workers find them, status lists them, they end whole."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import descendants
from servers import (
    Server,
    end,
    first_line,
    free_port,
    listening,
    server,
    sessions_folder,
    start,
    status,
    status_text,
    wait_for_end,
)

pytestmark = pytest.mark.timeout(600)

MIB = 1 << 20

# The notation of /proc/net/tcp and tcp6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}

WORKER = """
import json, sys
import numpy as np
import embstore as es

def make(path, **where):
    storage = es.StorageOption(es.StorageType.DRAM_PMEM, path, [None, 16 << 20])
    return es.get_embedding_variable(
        "items", 3, optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=storage), **where,
    )

random = np.random.default_rng(1)
with make(es.cluster.NODE_PMEM, shards=2) as there, make(sys.argv[1], partition_num=2) as here:
    for _ in range(5):
        ids = random.integers(-30_000, 30_000, (50, 1000))
        grads = random.standard_normal((50, 1000, 3)).astype(np.float32)
        for var in (there, here):
            var.lookup(ids, train=True)
            var.apply_gradients(ids, grads)
    for var in (there, here):
        var.drain()
    wanted = here.export()
    for column, values in there.export().items():
        np.testing.assert_array_equal(values, wanted[column], err_msg=column)
    print(json.dumps({
        "rows": there.total_count()[0],
        "processes": [shard.process_id for shard in there._shards],
        "tiers": [[t["path"], t["capacity_rows"], t["rows"]] for t in there.stats()["tiers"]],
    }), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with sessions_folder() as made:
        yield made


@pytest.fixture(scope="module")
def head(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pmem = tmp_path_factory.mktemp("pmem0")
    at = f"127.0.0.1:{free_port()}"
    with server(folder, "--bind_ip", at, "--pmem", str(pmem), "--cache_size", "1") as running:
        assert running.address == at
        yield running


@pytest.mark.long
def test_rows_are_in_each_servers_pmem_and_status_lists_them(
    folder: Path, head: Server, tmp_path: Path
) -> None:
    places = [tmp_path / "pmem1", tmp_path / "here"]
    for place in places:
        place.mkdir()
    with server(
        folder,
        *("--master_endpoint", head.address, "--pmem", str(places[0]), "--cache_size", "2"),
        ends_by=signal.SIGINT,
    ) as joined:
        assert joined.address == head.address
        worker = start(
            [sys.executable, "-c", WORKER, str(places[1])], folder, RAY_ADDRESS=head.address
        )
        try:
            told = json.loads(first_line(worker))
            assert_tiers_are_the_nodes(told["tiers"], {str(head.pmem): 1, str(joined.pmem): 2})
            processes = {worker.pid, *head.everything(), *joined.everything()}
            assert listening(processes) == LOOPBACK
            assert_status_lists(folder, head.address, told)
            assert_status_names_a_stopped_server(folder, head.address, told["processes"])
            _, err = worker.communicate("end\n", timeout=100)
            assert worker.returncode == 0, err
        finally:
            end(worker)


def assert_tiers_are_the_nodes(tiers: list[list[object]], cache_mib: dict[str, int]) -> None:
    """cache_mib: each server's --cache_size, by its --pmem."""
    row_bytes = 2 * 16
    found = set()
    for (_, cache_rows, in_cache), (path, _, in_pmem) in zip(tiers[::2], tiers[1::2], strict=True):
        (pmem,) = [place for place in cache_mib if Path(str(path)).parent == Path(place)]
        found.add(pmem)
        assert cache_rows == cache_mib[pmem] * MIB // row_bytes
        assert isinstance(in_cache, int)
        assert isinstance(in_pmem, int)
        assert in_cache + in_pmem > 0
    assert found == set(cache_mib), "a node has no shard"


def assert_status_lists(folder: Path, address: str, told: dict[str, object]) -> None:
    seen = status(folder, address)
    assert [node["address"] for node in seen["nodes"] if node["is_alive"]] == ["127.0.0.1"] * 2
    assert all(node["pmem_gib"] >= 1 for node in seen["nodes"])
    assert [(shard["variable"], shard["index"]) for shard in seen["shards"]] == [
        ("items", 0),
        ("items", 1),
    ]
    assert [shard["process_id"] for shard in seen["shards"]] == told["processes"]
    assert len({shard["node_id"] for shard in seen["shards"]}) == 2
    assert sorted(server["process_id"] for server in seen["servers"]) == sorted(told["processes"])
    for of in seen["servers"]:
        assert of["answers"]
        assert of["requests"]["LOOK_UP"] == of["requests"]["PREPARE"] == 5
    assert sum(shard["status"]["rows"] for shard in seen["shards"]) == told["rows"]
    for shard in seen["shards"]:
        of = shard["status"]
        assert sum(tier["rows"] for tier in of["tiers"]) == of["rows"]
        assert [tier["kind"] for tier in of["tiers"]] == ["DRAM", "PMEM_LIBPMEM"]
        assert of["looked_up_ids_per_s"] > 0
        assert of["applied_ids_per_s"] > 0


def assert_status_names_a_stopped_server(folder: Path, address: str, processes: list[int]) -> None:
    os.kill(processes[1], signal.SIGSTOP)
    try:
        text = status_text(folder, address, "--timeout", "1")
    finally:
        os.kill(processes[1], signal.SIGCONT)
    lines = {
        process: [line for line in text.splitlines() if str(process) in line]
        for process in processes
    }
    assert ["does not answer" in line for line in lines[processes[1]]] == [True]
    assert not any("does not answer" in line for line in lines[processes[0]])
    assert any("0 of 2" in line for line in lines[processes[0]]), "its shard is told of"


@pytest.mark.long
def test_an_error_about_another_ray_version_says_what_to_install(
    folder: Path, head: Server
) -> None:
    other = """
import sys
import ray
ray.__version__ = "2.59.0"
from embstore.server.__main__ import main
main(sys.argv[1:])
"""
    process = start([sys.executable, "-c", other, "--master_endpoint", head.address], folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert f"--master_endpoint: {head.address} runs another Ray or Python" in err
    assert "2.59.0" in err


@pytest.mark.long
def test_an_error_about_another_token_says_what_to_copy(folder: Path, head: Server) -> None:
    began = time.monotonic()
    for command in ([], ["status"]):
        process = start(
            [
                *(sys.executable, "-m", "embstore.server", *command),
                *("--master_endpoint", head.address),
            ],
            folder,
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN="another-token-than-that-of-the-head",
        )
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "copy that one's ~/.ray/auth_token here" in err
    assert time.monotonic() - began < 20


@pytest.mark.long
def test_a_server_whose_ray_dies_says_so_and_leaves_nothing(folder: Path) -> None:
    at = f"127.0.0.1:{free_port()}"
    process = start([sys.executable, "-m", "embstore.server", "--bind_ip", at], folder)
    try:
        first_line(process)
        below = descendants(process.pid)
        (raylet,) = [number for number in below if name_of(number) == "raylet"]
        os.kill(raylet, signal.SIGKILL)
        err = wait_for_end(process, below)
    finally:
        end(process)
    assert process.returncode == 1
    assert "Ray's raylet has ended" in err


@pytest.mark.long
def test_a_server_that_gets_a_signal_while_it_starts_leaves_nothing(folder: Path) -> None:
    at = f"127.0.0.1:{free_port()}"
    process = start([sys.executable, "-m", "embstore.server", "--bind_ip", at], folder)
    try:
        deadline = time.monotonic() + 60
        while not (below := descendants(process.pid)):
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.terminate()
        wait_for_end(process, below)
    finally:
        end(process)
    assert process.returncode == 0


def name_of(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


WITHOUT_A_CLUSTER = """
import sys
import embstore as es
import ray

with es.get_embedding_variable("alone", 3, optimizer=es.optimizers.Adagrad(0.1), shards=1):
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.long
def test_status_finds_a_program_that_trains_without_a_cluster(folder: Path) -> None:
    program = start([sys.executable, "-c", WITHOUT_A_CLUSTER], folder)
    try:
        address = first_line(program).strip()
        asked = start([sys.executable, "-m", "embstore.server", "status"], folder)
        out, err = asked.communicate(timeout=200)
        if asked.returncode != 0:  # another cluster runs on this computer too
            assert re.search(rf"Ray clusters have a node .* choose .*\b{re.escape(address)}\b", err)
            out = status_text(folder, address)
        assert re.search(r"alone +\W +0 of 1", out), out
    finally:
        end(program)


@pytest.mark.long
def test_status_of_a_cluster_that_isnt_there_says_what_to_start(folder: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    process = start(
        [sys.executable, "-m", "embstore.server", "status", "--master_endpoint", nobody], folder
    )
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "start a server there (python -m embstore.server)" in err


JOB = """
import sys
from pathlib import Path
import numpy as np
import embstore as es
from job_training import EVERY, durable, train, trained_here

folder = Path(sys.argv[1])
storage = durable(es.cluster.NODE_PMEM)
other = es.EmbeddingVariableOption(
    storage_option=es.StorageOption(es.StorageType.DRAM_PMEM, es.cluster.NODE_PMEM, [None, 1 << 30])
)
full = []
for part in range(1, 4):
    steps = part * EVERY
    rows, _ = es.cluster.run(
        train, folder, 2, 0.0, steps, storage, workers=2, checkpoints=folder / "checkpoints"
    )
    # So that Ray would have the first shard on the other node next time.
    full.append(es.get_embedding_variable(f"other{part}", 3, shards=1, ev_option=other))
    wanted = trained_here(2, steps)
    for column, values in rows.items():
        np.testing.assert_array_equal(values, wanted[column], err_msg=column)
print("went on", flush=True)
"""


@pytest.mark.long
def test_shards_return_to_the_servers_that_have_their_persisted_rows(
    folder: Path, head: Server, tmp_path: Path
) -> None:
    pmem = tmp_path / "pmem1"
    pmem.mkdir()
    with server(folder, "--master_endpoint", head.address, "--pmem", str(pmem)) as joined:
        job = start(
            [sys.executable, "-c", JOB, str(tmp_path)],
            folder,
            RAY_ADDRESS=head.address,
            PYTHONPATH=os.pathsep.join([*sys.path, str(Path(__file__).parent)]),
        )
        out, err = job.communicate(timeout=300)
        assert out == "went on\n", err
        assert head.pmem is not None
        assert joined.pmem is not None
        for place in (head.pmem, joined.pmem):
            assert list(place.glob("items.part*.checkpoint-*")), f"a shard persisted at {place}"
