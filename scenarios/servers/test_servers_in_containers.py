"""Servers in containers, on a network of their own, like separate computers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import assert_rows_lie_in_pmem
from sharded import assert_same

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("docker", reason="needs Docker's package: pip install 'pmemlab'")
pytest.importorskip("torch", reason="needs PyTorch: pip install 'embstore[torch]'")
pytest.importorskip("keras", reason="needs Keras: pip install 'embstore[keras]'")
containers: Any = importlib.import_module("containers")
deepfm: Any = importlib.import_module("deepfm")
job_training: Any = importlib.import_module("job_training")
trained_here: Any = importlib.import_module("trained_here")

pytestmark = pytest.mark.timeout(420)

_HERE = Path(__file__).parent
_PROGRAMS = [
    *(_HERE / name for name in ("deepfm.py", "train_on_servers.py", "job_on_servers.py")),
    *(Path(job_training.__file__).with_name(name) for name in ("job_training.py", "sharded.py")),
]
_TRAINED_WITHIN_S = 150.0
_SECOND_CHECKPOINT = 2 * job_training.EVERY  # exists before the test interferes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with containers.containers() as cluster:
        cluster.copy_programs(_PROGRAMS)
        yield cluster


def test_each_is_on_one_network_that_leads_nowhere_and_on_no_other(cluster: Any) -> None:
    (network,) = cluster.networks()
    network.reload()
    assert network.attrs["Internal"]
    assert len(network.attrs["Containers"]) == 1 + len(cluster.servers)


def test_rows_come_over_the_network_are_those_of_one_process_and_lie_in_each_servers_pmem(
    cluster: Any, tmp_path: Path
) -> None:
    received_before = sum(server.received_bytes() for server in cluster.servers)
    with cluster.running("train_on_servers.py", "deepfm") as program:
        containers.wait_for(
            program, lambda: cluster.has_shared_file("deepfm/report.json"), _TRAINED_WITHIN_S
        )
        shards = cluster.shards()
        cluster.fetch("deepfm", tmp_path)
        rows = [np.load(tmp_path / f"deepfm/{name}.npz")["keys"].size for name in deepfm.TABLES]
        assert_rows_lie_in_pmem(cluster.servers, shards, sum(rows))
        for server in cluster.servers:
            assert server.file_system(server.pmem) == "tmpfs", "a mount of its own"
            assert server.file_system(Path("/srv")) is None, "and a folder is told from one"
        cluster.touch("deepfm/seen")
        assert program.wait(60) == 0, program.output_text()
    received = sum(server.received_bytes() for server in cluster.servers) - received_before
    assert received > _pushed_bytes(), "gradients have come by another way"
    trained_here.assert_trained_as_here(tmp_path / "deepfm")


def _disconnect(server: Any, network: Any) -> Callable[[], None]:
    network.disconnect(server.container)

    def mend() -> None:
        server.container.kill()  # a node that its cluster has given up doesn't rejoin
        network.connect(server.container)
        containers.start_again(server)

    return mend


def _power_off(server: Any, _network: Any) -> Callable[[], None]:
    server.container.kill()
    return lambda: containers.start_again(server)


@pytest.mark.parametrize("happens", [pytest.param(_disconnect, marks=pytest.mark.long), _power_off])
def test_a_job_goes_on_without_a_server_and_ends_with_the_same_rows(
    cluster: Any, tmp_path: Path, happens: Callable[[Any, Any], Callable[[], None]]
) -> None:
    folder = happens.__name__
    (network,) = cluster.networks()
    wanted = job_training.trained_here(2)
    with cluster.running("job_on_servers.py", folder) as program:
        containers.wait_for(
            program,
            lambda: cluster.has_shared_file(f"{folder}/checkpoints/step-{_SECOND_CHECKPOINT:012}"),
            _TRAINED_WITHIN_S,
        )
        mend = happens(cluster.servers[0], network)
        try:
            status = program.wait(_TRAINED_WITHIN_S)
        finally:
            mend()
        assert status == 0, program.output_text()
        assert "all workers start again from step" in program.output_text()
    cluster.fetch(folder, tmp_path)
    assert_same(dict(np.load(tmp_path / folder / "result.npz")), wanted)


def _pushed_bytes() -> int:
    """Returns the bytes of gradients and keys that the workers push, counted once per key."""
    total = 0
    for rank in range(deepfm.WORKERS):
        for step in range(deepfm.STEPS):
            ids, _ = deepfm.samples(rank, step)
            keys = np.unique(ids).size
            total += sum(keys * (8 + 4 * dim) for dim in deepfm.TABLES.values())
    return total
