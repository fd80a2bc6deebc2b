"""Settings that a variable leaves to the nodes of its shards, and the rates that shards report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.cluster.server.counted_shard import WINDOW_S, CountedShard, Rate
from embstore.cluster.server.node_settings import NodeSettings
from embstore.cluster.server.status import status_of
from embstore.errors import InvalidArgumentError, MissingDeviceError, StoreFullError
from embstore.options import TierKind
from embstore.table.several_shards import (
    GradientPart,
    Prepared,
    commit_together,
    look_up_together,
    prepare_together,
)
from embstore.table.shard import ShardSpec, TierSpec

MIB = 1 << 20


def option(path: Any, sizes: Any, kind: es.StorageType = es.StorageType.DRAM_PMEM) -> Any:
    return es.StorageOption(kind, path, sizes)


def spec(storage: es.StorageOption, name: str = "var.part1") -> ShardSpec:
    tiers = [
        TierSpec(tier.kind, None if tier.path is None else f"{tier.path}/{name}", tier.size_bytes)
        for tier in storage.tiers()
    ]
    return ShardSpec(
        name, 3, np.zeros((1, 3), np.float32), "SGD", {"learning_rate": 0.1}, tiers, "LFU", None,
        0.0, es.SSDHashOption(), False,
    )  # fmt: skip


def test_a_node_gives_its_own_path_and_cache() -> None:
    storage = option(es.cluster.NODE_PMEM, [None, 64 * MIB])
    node = NodeSettings("/mnt/pmem1", 5 * MIB)
    tiers, settled = node.settle(storage.tiers(), spec(storage))
    assert [(tier.path, tier.size_bytes) for tier in tiers] == [
        (None, 5 * MIB),
        ("/mnt/pmem1", 64 * MIB),
    ]
    assert settled.tiers == [
        TierSpec(TierKind.DRAM, None, 5 * MIB),
        TierSpec(TierKind.PMEM_LIBPMEM, "/mnt/pmem1/var.part1", 64 * MIB),
    ]


@pytest.mark.parametrize("path", ["/mnt/own", [None, "/mnt/own"]])
def test_a_variables_own_paths_and_sizes_are_kept(path: Any) -> None:
    for storage in (option(path, None), option(es.cluster.NODE_PMEM, [MIB, 64 * MIB])):
        node = NodeSettings("/mnt/pmem1", 5 * MIB)
        _, settled = node.settle(storage.tiers(), spec(storage))
        before = spec(storage).tiers
        assert [tier.size_bytes for tier in settled.tiers] == [tier.size_bytes for tier in before]
    storage = option(path, None)
    assert NodeSettings("/mnt/pmem1").settle(storage.tiers(), spec(storage))[1].tiers == (
        spec(storage).tiers
    )


def test_a_checkpointed_pool_may_be_in_a_nodes_pmem() -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_PMEM, es.cluster.NODE_PMEM, durability="checkpoint"
    )
    _, settled = NodeSettings("/mnt/pmem1").settle(storage.tiers(), spec(storage))
    assert settled.tiers[1] == TierSpec(TierKind.PMEM_POOL, "/mnt/pmem1/var.part1", 1 << 30)


def test_an_error_about_a_node_without_pmem_says_how_to_start_it() -> None:
    storage = option(es.cluster.NODE_PMEM, None)
    with pytest.raises(MissingDeviceError, match=r"embstore\.server --pmem DIRECTORY"):
        NodeSettings().settle(storage.tiers(), spec(storage))


def test_settings_go_to_a_nodes_processes_in_their_environment() -> None:
    for settings in (NodeSettings(), NodeSettings("/mnt/p m", 7), NodeSettings("/mnt")):
        assert NodeSettings.of_this_process(settings.environment()) == settings


def test_a_variable_of_this_process_has_no_node() -> None:
    storage = option(es.cluster.NODE_PMEM, None)
    with pytest.raises(InvalidArgumentError, match="give shards=, or a directory"):
        es.get_embedding_variable(
            "var", 3, ev_option=es.EmbeddingVariableOption(storage_option=storage)
        )


def test_a_size_that_is_none_is_the_default() -> None:
    tiers = option("/mnt", [None, MIB]).tiers()
    assert [(tier.size_bytes, tier.is_default_size) for tier in tiers] == [
        (1 << 30, True),
        (MIB, False),
    ]


def test_a_rate_covers_the_last_seconds() -> None:
    now_s = 1000.25
    rate = Rate(lambda: now_s)
    rate.add(300)
    assert rate.per_s() == 300  # not the rate of an instant
    now_s += 3
    assert rate.per_s() == 100
    now_s += WINDOW_S - 3
    assert rate.per_s() == 0
    rate.add(50)
    now_s += 0.5
    assert rate.per_s() == pytest.approx(50 / (WINDOW_S - 1 + 0.75))
    now_s += 10 * WINDOW_S
    rate.add(1)
    assert rate.per_s() == pytest.approx(1 / (WINDOW_S - 1 + 0.75))


def test_a_shard_counts_only_look_ups_and_committed_applies() -> None:
    shard = CountedShard(spec(option(None, [32 * 64], es.StorageType.DRAM)))
    ids, counts = np.arange(10), np.full(10, 3, np.uint32)
    grads = np.ones((10, 3), np.float32)
    rows = np.empty(10 * 3, np.float32)
    assert look_up_together([shard], ids, [0, 10], rows, True, counts) == [None]
    as_often = GradientPart(ids, grads, counts, 30)
    once = GradientPart(ids, grads, None, ids.size)
    for ended, batch in (("committed", as_often), ("aborted", once), ("committed", once)):
        (prepared,) = prepare_together([(shard, [batch])], 1.0)
        assert isinstance(prepared, Prepared)
        if ended == "aborted":
            prepared.abort()
        else:
            commit_together([prepared], None)
    many = np.arange(10_000)
    too_many = GradientPart(many, np.ones((many.size, 3), np.float32), None, many.size)
    (refused,) = prepare_together([(shard, [too_many])], 1.0)
    assert isinstance(refused, StoreFullError)
    told = status_of(shard)
    assert (told.looked_up_ids_per_s, told.applied_ids_per_s) == (30, 40)
    assert (told.rows, [tier.rows for tier in told.tiers]) == (10, [10])
    shard.close()


def test_a_pmem_place_is_the_given_folder(tmp_path: Path) -> None:
    from embstore.server.pmem_place import PmemPlace

    place = PmemPlace.of(str(tmp_path))
    assert place.path == str(tmp_path)
    assert place.whole_gib == max(1, place.free_bytes >> 30)
