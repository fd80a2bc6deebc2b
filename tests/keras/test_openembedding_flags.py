"""The flags' settings of servers, and how a model's tables share a server's memory."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras_models import keras
from openembedding_models import on_pmem, tables_of

import embstore as es
import embstore.openembedding as embed
from embstore.errors import (
    InvalidArgumentError,
    MissingDeviceError,
    MissingLibraryError,
    UnsupportedError,
)
from embstore.openembedding.placement import TableNeed, placements, shares
from embstore.openembedding.server_config import server_config

pytestmark = pytest.mark.any_backend

MIB = 1 << 20


# --- flags.config


@pytest.mark.parametrize(
    "text",
    [
        '{"server":{"pmem_pool_root_path":"/mnt/pmem0", "cache_size":512 } }',
        "server:\n  pmem_pool_root_path: /mnt/pmem0\n  cache_size: 512\n",
        "{server: {pmem_pool_root_path: /mnt/pmem0, cache_size: 512}}",
        '{"server":{"pmem_pool_root_path":"/mnt/pmem0", "cache_size":"512M"}}',
        '{"server":{"pmem_pool_root_path":"/mnt/pmem0", "cache_size":"512"}}',
    ],
)
def test_the_config_is_json_or_yaml(text: str) -> None:
    config = server_config(text)
    assert (config.pmem_pool_root_path, config.cache_bytes) == ("/mnt/pmem0", 512 * MIB)


@pytest.mark.parametrize(
    "text", ["", "  ", "{}", '{"server": {}}', '{"server": {"pmem_pool_root_path": ""}}']
)
def test_without_a_pool_tables_are_in_dram(text: str) -> None:
    assert server_config(text).pmem_pool_root_path is None


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"server": {"cache_sise": 1}}', InvalidArgumentError, r"server\.cache_sise isn't known"),
        ('{"servers": {}}', InvalidArgumentError, "'servers'"),
        ('{"server": 3}', InvalidArgumentError, "server must be a mapping"),
        ("[1]", InvalidArgumentError, "must be a mapping"),
        ("{", InvalidArgumentError, "neither JSON nor YAML"),
        ('{"server": {"cache_size": 1024}}', InvalidArgumentError, "pmem_pool_root_path too"),
        ('{"server": {"pmem_pool_root_path": 3}}', InvalidArgumentError, "must be a string"),
        (
            '{"server": {"pmem_pool_root_path": "/p", "cache_size": 0}}',
            InvalidArgumentError,
            "cache_size",
        ),
        (
            '{"server": {"pmem_pool_root_path": "/p", "cache_size": "²"}}',
            InvalidArgumentError,
            r"server\.cache_size must be bytes, or a number",
        ),
        ('{"server": {"message_compress": "lz4"}}', UnsupportedError, "message_compress"),
        ('{"master": {"endpoint": "1.2.3.4:5"}}', UnsupportedError, r"flags\.master_endpoint"),
        ('{"rpc": {"protocol": "rdma"}}', UnsupportedError, "rpc"),
    ],
)
def test_a_field_that_is_not_supported_is_named(
    text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        server_config(text)


def test_without_pyyaml_a_config_in_yaml_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingLibraryError, match="pip install pyyaml"):
        server_config("server: {}")
    assert server_config('{"server": {}}').pmem_pool_root_path is None


def test_a_field_without_effect_causes_a_warning() -> None:
    with pytest.warns(UserWarning, match="server_concurrency has no effect"):
        server_config('{"server": {"server_concurrency": 28}}')


# --- The other flags


@pytest.mark.parametrize(
    ("flag", "value", "error", "message"),
    [
        ("bind_ip", "10.0.0.1", UnsupportedError, "bind_ip"),
        ("num_workers", 2, UnsupportedError, "one process"),
        ("num_workers", 0, InvalidArgumentError, "num_workers"),
        ("wait_num_servers", 2, InvalidArgumentError, "master_endpoint"),
        ("wait_num_servers", -2, InvalidArgumentError, "wait_num_servers"),
        ("wait_num_servers", 0, InvalidArgumentError, "wait_num_servers"),
        ("master_endpoint", "server0", InvalidArgumentError, "IP:PORT"),
        ("config", None, InvalidArgumentError, "config must be a string"),
    ],
)
def test_a_flag_that_is_not_supported_is_named_when_a_table_is_made(
    monkeypatch: pytest.MonkeyPatch, flag: str, value: Any, error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(embed.flags, flag, value)
    with pytest.raises(error, match=message):
        embed.Embedding(-1, 4)


def test_a_flag_that_does_not_exist_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        embed.flags.master_endpont = "1.2.3.4:5"  # type: ignore[attr-defined]


# --- The tables' shares of a server's memory


def test_the_tables_of_a_model_share_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed.flags, "config", on_pmem(tmp_path, cache_mb=6))
    ids = keras.Input((1,), dtype="int64")
    own = embed.Embedding(-1, 8, name="own")
    rows = [own(ids), keras.layers.Embedding(1 << 16, 16, name="theirs")(ids)]
    model = embed.distributed_model(keras.Model(ids, keras.layers.Concatenate()(rows)))
    options = {table.name: table.ev_option.storage_option for table in tables_of(model)}
    assert {option.storage_type for option in options.values()} == {es.StorageType.DRAM_PMEM}
    assert {option.durability for option in options.values()} == {"checkpoint"}
    assert {option.storage_path for option in options.values()} == {str(tmp_path)}
    caches = {name: option.tiers()[0].size_bytes for name, option in options.items()}
    assert caches == {"own": 2 * MIB, "theirs": 4 * MIB}


def test_a_table_with_its_own_ev_option_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed.flags, "config", on_pmem(tmp_path))
    option = es.EmbeddingVariableOption(filter_option=es.CounterFilter(2))
    layer = embed.Embedding(-1, 8, ev_option=option)
    assert layer.ev_option == option


def test_partitions_on_a_server_share_the_tables_size() -> None:
    flags = embed.Flags(config=on_pmem(Path("/p"), cache_mb=8))
    (whole,) = placements([TableNeed("t", 16, None, None)], flags)
    (parted,) = placements([TableNeed("t", 16, None, 4)], flags)
    assert (whole.partition_num, parted.partition_num) == (1, 4)
    cache, cache_of_one = (each.storage.tiers()[0].size_bytes for each in (whole, parted))
    assert (cache, cache_of_one) == (8 * MIB, 2 * MIB)


@given(
    total=st.integers(0, 1 << 40),
    tables=st.lists(
        st.tuples(st.integers(1, 4096), st.none() | st.integers(0, 1 << 32)), min_size=1
    ),
)
def test_shares_are_fair_and_within_the_total(
    total: int, tables: list[tuple[int, int | None]]
) -> None:
    weights, most = [weight for weight, _ in tables], [limit for _, limit in tables]
    given_ = shares(total, weights, most)
    assert sum(given_) <= total
    unlimited = [i for i, limit in enumerate(most) if limit is None]
    if unlimited:
        assert sum(given_) > total - len(tables), "something was left over"
    for i, limit in enumerate(most):
        assert limit is None or given_[i] <= limit
    for i, other in itertools.product(unlimited, range(len(tables))):
        # Up to a byte per weight, a table without a limit has no less than the others.
        assert (given_[i] + 1) * weights[other] >= given_[other] * weights[i]


def test_waiting_for_servers_that_never_come_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from embstore.cluster.ray import cluster as ray_cluster
    from embstore.openembedding import servers

    class Ray:
        def is_initialized(self) -> bool:
            return False

        def nodes(self) -> list[dict[str, Any]]:
            return [{"NodeID": "a", "NodeManagerAddress": "127.0.0.1", "Alive": True}]

    monkeypatch.setattr(servers, "_WAITS_S", 0.0)
    monkeypatch.setattr(servers, "_LOOKS_AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(ray_cluster, "library", Ray)
    monkeypatch.setattr(ray_cluster, "join_or_start", Ray)
    monkeypatch.setenv("RAY_ADDRESS", "")
    flags = embed.Flags(master_endpoint="127.0.0.1:6379", wait_num_servers=2)
    with pytest.raises(MissingDeviceError, match="has 1 servers"):
        servers.joined_servers(flags, on_pmem=False)
