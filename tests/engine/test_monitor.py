"""A monitor reports the counters of variables since it was last asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from checkpoint_variables import open_variable
from engine_storage import Stack

import embstore as es
from embstore.errors import ShardLostError


@pytest.fixture
def pair() -> Iterator[tuple[es.EmbeddingVariable, es.EmbeddingVariable]]:
    """Yields a variable of two tiers and three partitions, and one of a single tier."""
    stack = Stack(es.StorageType.DRAM_SSDHASH)
    with (
        open_variable(stack, name="items", partition_num=3) as items,
        open_variable(name="users") as users,
    ):
        yield items, users


def train(var: es.EmbeddingVariable, keys: int) -> None:
    var.apply_gradients(np.arange(keys), np.ones((keys, 3), np.float32))
    var.drain()


def test_a_monitor_counts_since_the_last_call(
    pair: tuple[es.EmbeddingVariable, es.EmbeddingVariable],
) -> None:
    items, users = pair
    train(users, 10)
    monitor = es.Monitor(pair)
    users.lookup(np.arange(5))
    users.lookup([5, 100])
    told = monitor.since_last()["users"]
    assert (told["hits"], told["misses"], told["hit_rate"]) == (6, 1, 6 / 7)
    assert told["without_row"] == 1
    assert (told["rows"], told["rows_in_tier_0"]) == (10, 10)
    assert math.isnan(monitor.since_last()["users"]["hit_rate"])
    users.lookup([1])
    assert monitor.scalars()["users/hits"] == 1
    assert items.name in monitor.since_last()


def test_rows_are_counted_by_tier_over_all_partitions(
    pair: tuple[es.EmbeddingVariable, es.EmbeddingVariable],
) -> None:
    items, _ = pair
    train(items, 200)
    scalars = es.Monitor(pair).scalars()
    tiers = items.stats()["tiers"]
    for tier in (0, 1):
        assert scalars[f"items/rows_in_tier_{tier}"] == sum(t["rows"] for t in tiers[tier::2]) > 0
    assert scalars["items/rows"] == 200
    assert "items/rows_in_tier_2" not in scalars


def test_a_variable_that_is_closed_is_left_out(
    pair: tuple[es.EmbeddingVariable, es.EmbeddingVariable],
) -> None:
    monitor = es.Monitor(pair)
    pair[0].close()
    assert list(monitor.since_last()) == ["users"]


def test_prometheus_reads_a_monitor(
    pair: tuple[es.EmbeddingVariable, es.EmbeddingVariable],
) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    _, users = pair
    registry = prometheus.CollectorRegistry()
    registry.register(es.Monitor(pair))
    train(users, 10)
    users.lookup(np.arange(12))
    text = prometheus.generate_latest(registry).decode()
    assert 'embstore_hits_total{variable="users"} 10.0' in text
    assert 'embstore_misses_total{variable="users"} 2.0' in text
    assert 'embstore_without_row_total{variable="users"} 2.0' in text
    assert 'embstore_rows{tier="0",variable="users"} 10.0' in text
    assert f'embstore_index_bytes{{variable="users"}} {float(users.stats()["index_bytes"])}' in text
    room = float(users.stats()["tiers"][0]["capacity_rows"])
    assert f'embstore_capacity_rows{{tier="0",variable="users"}} {room}' in text


def test_prometheus_tells_an_unlimited_tier_and_rows_that_cannot_move(
    pair: tuple[es.EmbeddingVariable, es.EmbeddingVariable], monkeypatch: pytest.MonkeyPatch
) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    _, users = pair
    told = {**users.stats(), "background_error": "No space left on device"}
    told["tiers"] = [{**tier, "capacity_rows": None} for tier in told["tiers"]]
    monkeypatch.setattr(users, "stats", lambda: told)
    registry = prometheus.CollectorRegistry()
    registry.register(es.Monitor(pair))
    text = prometheus.generate_latest(registry).decode()
    assert 'embstore_capacity_rows{tier="0",variable="users"} +Inf' in text
    assert 'embstore_has_background_error{variable="items"} 0.0' in text
    assert 'embstore_has_background_error{variable="users"} 1.0' in text


def test_a_variable_that_lost_a_shard_is_left_out_and_logged_once(
    pair: tuple[es.EmbeddingVariable, es.EmbeddingVariable],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    items, users = pair
    monitor = es.Monitor(pair)

    def lose() -> Any:
        raise ShardLostError("the shard items can't be reached any more")

    monkeypatch.setattr(items, "stats", lose)
    train(users, 10)
    for _ in range(2):
        assert list(monitor.since_last()) == ["users"]
    (record,) = caplog.records
    assert "leaves items out from now on: the shard items can't be reached" in record.getMessage()
