"""Two workers train DeepFM, whose tables lie in the PMem of two servers, as one process does."""

from __future__ import annotations

import contextlib
import dataclasses
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
from evidence import PmemServer, assert_rows_lie_in_pmem
from servers import Server, free_port, server, sessions_folder, status

import embstore as es

os.environ.setdefault("KERAS_BACKEND", "torch")
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'pmemlab[torch]'")
pytest.importorskip("keras", reason="needs Keras: pip install 'pmemlab[keras]'")
deepfm = pytest.importorskip("deepfm")

pytestmark = pytest.mark.timeout(240)

_PROGRAM = Path(__file__).with_name("train_on_servers.py")
_TRAINED_WITHIN_S = 90.0

# A program whose table lies in the DRAM of the servers.
_IN_DRAM = """
import sys, time
from pathlib import Path
import numpy as np
import embstore as es

folder = Path(sys.argv[1])
with es.get_embedding_variable("items", 8, optimizer=es.optimizers.SGD(0.1), shards=2) as items:
    items.apply_gradients(np.arange(1000), np.ones((1000, 8), np.float32))
    (folder / "told.json").write_text("{}")
    while not (folder / "seen").exists():
        time.sleep(0.05)
"""


class Cluster:
    """A head, where workers are, and two servers with PMem, where they aren't."""

    def __init__(self, folder: Path, head: Server, servers: list[Server]) -> None:
        self.folder = folder
        self.head = head
        self._servers = servers

    def servers(self) -> list[PmemServer]:
        found = []
        for each in self._servers:
            assert each.pmem is not None
            found.append(PmemServer(each.everything(), each.pmem))
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
    """What the program told of its shards, and what `status` did while they were there."""

    told: dict[str, Any]
    shards: list[dict[str, Any]]
    servers: list[PmemServer]


@contextlib.contextmanager
def trained(cluster: Cluster, folder: Path, *program: str) -> Iterator[Trained]:
    """By a Python program on the servers; their shards are there until this is left."""
    environment = {
        **os.environ,
        "RAY_ADDRESS": cluster.head.address,
        "RAY_TMPDIR": str(cluster.folder),
    }
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, *program, str(folder)],
            env=environment,
            stdout=said,
            stderr=said,
        )
    try:
        deadline = time.monotonic() + _TRAINED_WITHIN_S
        while not (folder / "told.json").exists():
            assert process.poll() is None, (folder / "said").read_text()
            assert time.monotonic() < deadline, (folder / "said").read_text()
            time.sleep(0.05)
        seen = status(cluster.folder, cluster.head.address)
        told = json.loads((folder / "told.json").read_text())
        yield Trained(told, seen["shards"], cluster.servers())
        (folder / "seen").touch()
        assert process.wait(timeout=60) == 0, (folder / "said").read_text()
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
        assert not {*run.told["workers"]} & {*one.processes, *other.processes}, "workers elsewhere"
        swapped = [PmemServer(one.processes, other.pmem), PmemServer(other.processes, one.pmem)]
        with pytest.raises(AssertionError, match="the kernel has 0 of its pages there"):
            assert_rows_lie_in_pmem(swapped, run.shards, 0)
    here = trained_here()
    for name in deepfm.TABLES:
        assert_same(rows[name], here.rows[name])
    with np.load(tmp_path / "dense.npz") as dense:
        for array, wanted in zip(dense.values(), here.dense, strict=True):
            np.testing.assert_array_equal(array, wanted)
    for rank in range(deepfm.WORKERS):
        losses = np.load(tmp_path / f"losses{rank}.npy")
        np.testing.assert_array_equal(losses, here.losses[rank])
        assert losses[-5:].mean() < losses[:5].mean(), "it learns"


def test_servers_that_do_not_use_their_pmem_are_told_from_those_that_do(
    cluster: Cluster, tmp_path: Path
) -> None:
    with trained(cluster, tmp_path, "-c", _IN_DRAM) as run:
        all_processes = set().union(*(each.processes for each in run.servers))
        everywhere = cluster.head.everything() - all_processes
        one, other = run.servers
        servers = [PmemServer({*one.processes, *everywhere}, one.pmem), other]
        with pytest.raises(AssertionError, match="has no tier in PMem"):
            assert_rows_lie_in_pmem(servers, run.shards, 0)


@dataclasses.dataclass(frozen=True)
class TrainedHere:
    rows: dict[str, dict[str, Any]]
    dense: list[Any]
    losses: list[list[float]]  # by worker


def trained_here() -> TrainedHere:
    """One process computes both workers' parts of each step, one after the other, on tables of its
    own, and gives each table their gradients as one batch.
    """
    model = deepfm.interactions()
    optimizer = deepfm.dense_optimizer()
    optimizer.build(model.trainable_variables)
    losses: list[list[float]] = [[] for _ in range(deepfm.WORKERS)]
    with contextlib.ExitStack() as stack:
        tables = {
            name: stack.enter_context(
                es.get_embedding_variable(
                    name,
                    dim,
                    initializer=deepfm.initializer(name),
                    optimizer=deepfm.optimizer(),
                )
            )
            for name, dim in deepfm.TABLES.items()
        }
        for step in range(deepfm.STEPS):
            parts: dict[str, list[Any]] = {name: [] for name in tables}
            dense = []
            for rank in range(deepfm.WORKERS):
                ids, labels = deepfm.samples(rank, step)
                model.zero_grad()
                found = {
                    name: torch.from_numpy(table.lookup(ids, train=True)).requires_grad_()
                    for name, table in tables.items()
                }
                loss = deepfm.loss_of(model(list(found.values()), training=True), labels)
                loss.backward()
                losses[rank].append(float(loss.detach()))
                for name, rows in found.items():
                    parts[name].append(as_a_workers_part(ids, rows.grad.numpy()))
                dense.append([weight.value.grad.clone() for weight in model.trainable_variables])
            for name, table in tables.items():
                all_ids, all_means = zip(*parts[name], strict=True)
                table.apply_gradients(np.concatenate(all_ids), np.concatenate(all_means))
            means = [
                torch.stack(each).sum(dim=0) / deepfm.WORKERS for each in zip(*dense, strict=True)
            ]
            with torch.no_grad():
                optimizer.apply(means, model.trainable_variables)
        return TrainedHere(
            {name: table.export() for name, table in tables.items()},
            [weight.numpy() for weight in model.trainable_variables],
            losses,
        )


def as_a_workers_part(
    ids: np.ndarray[Any, Any], grads: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sums over each key's occurrences, in their order, by 1/workers; a key occurs as often as it
    did, and its gradient comes with the first time.
    """
    unique, where = np.unique(ids, return_inverse=True)
    sums = np.zeros((unique.size, grads.shape[-1]), np.float32)
    np.add.at(sums, where.reshape(-1), grads.reshape(-1, grads.shape[-1]))
    again = np.repeat(unique, np.bincount(where.reshape(-1)) - 1)
    nothing = np.zeros((again.size, grads.shape[-1]), np.float32)
    return (
        np.concatenate([unique, again]),
        np.concatenate([sums * np.float32(1 / deepfm.WORKERS), nothing]),
    )


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert len(wanted["keys"]) > 10_000
    assert got.keys() == wanted.keys()
    for column, values in wanted.items():
        np.testing.assert_array_equal(got[column], values, err_msg=column)
