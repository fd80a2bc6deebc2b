"""Shards with rows in a GPU's memory: the nodes and GPUs that they get from Ray.

The cluster's node only claims to have a GPU; the emulated GPU holds the rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from sharded import MIB, train_a_little

import embstore as es
from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.server import shard_placement
from embstore.errors import EmbStoreError, InvalidArgumentError, MissingDeviceError

pytestmark = pytest.mark.usefixtures("ray")


def make_table(device: str | None) -> es.EmbeddingVariable:
    storage = es.StorageOption(es.StorageType.HBM_DRAM, storage_size=[MIB, MIB], device=device)
    return es.get_embedding_variable(
        "on_gpus",
        3,
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
        shards=2,
    )


@pytest.fixture
def taken_gpu(ray: Any) -> Any:
    """Reserves the node's whole GPU for another actor."""

    class Owner:
        def has_it(self) -> bool:
            return True

    owner = ray.remote(Owner).options(num_cpus=0, num_gpus=1).remote()
    assert ray.get(owner.has_it.remote())
    yield
    ray.kill(owner)


@pytest.mark.usefixtures("taken_gpu")
def test_shards_on_the_emulated_gpu_ask_ray_for_none() -> None:
    with make_table("emulated") as table:
        train_a_little(table)
        assert table.total_count() == (3, 3)


@pytest.mark.long
@pytest.mark.usefixtures("taken_gpu")
def test_shards_ask_ray_for_a_share_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_placement, "_PLACED_WITHIN_S", 4.0)
    with pytest.raises(MissingDeviceError, match=r"no node had room for 2 shards .* left"):
        make_table("cuda")


@pytest.mark.long
def test_a_shard_that_has_its_share_opens_the_gpu_itself() -> None:
    # There is no driver here, which the shard's own process reports.
    with pytest.raises(EmbStoreError, match="driver"):
        make_table("cuda")


@pytest.mark.long
def test_the_environment_of_the_tables_maker_chooses_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMBSTORE_DEVICE", "emulated")
    with make_table(None) as table:
        train_a_little(table)


def test_a_gpu_by_number_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r'device must be "cuda".*got \'cuda:1\''):
        make_table("cuda:1")


def test_a_cluster_without_gpus_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "offered", lambda _ray, _resource: [])
    with pytest.raises(MissingDeviceError, match=r"no node of the cluster offers a GPU"):
        make_table("cuda")
