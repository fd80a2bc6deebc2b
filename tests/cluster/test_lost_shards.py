"""A shard that dies is reported, never waited for, and never taken for alive."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_training import durable, variable
from processes import assert_gone
from sharded import assert_same, local_and_sharded, remote_shards, train

import embstore as es
from embstore.cluster.rows.remote_shard import RemoteShard
from embstore.errors import EmbStoreError, ShardLostError
from embstore.table.remote_shards import UpdatePart, push_together

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]

TELLS_WHAT_TO_DO = r"var.part1 of 2 on node 127.0.0.1 can't be reached .* restore"


@pytest.mark.long
def test_every_method_reports_a_killed_shard_and_its_save_can_be_restored(
    tmp_path: Path,
) -> None:
    with local_and_sharded(2) as (here, there):
        for var in (here, there):
            train(var, seed=1)
        es.save(tmp_path / "saved", [there], 5)
        living, dying = remote_shards(there)
        before = living.export()
        os.kill(dying.process_id, signal.SIGKILL)
        ids = np.arange(100)
        for _ in range(2):
            for use in (
                lambda: there.apply_gradients(ids, np.ones((100, 3), np.float32)),
                lambda: there.lookup(ids),
                there.export,
                lambda: es.save(tmp_path / "another", [there], 6),
            ):
                with pytest.raises(ShardLostError, match=TELLS_WHAT_TO_DO):
                    use()
        np.testing.assert_array_equal(living.export().values, before.values)
        ones = np.ones((4, 3), np.float32)
        update = UpdatePart(living, living.begin_push(), np.arange(4), ones, None)
        assert push_together([[update]], None) == [None]  # no other push holds a place
        there.close()  # the loss has been reported
        with local_and_sharded(2) as (_, again):
            es.restore(tmp_path / "saved", [again])
            for var in (here, again):
                train(var, seed=2)
            assert_same(again.export(), here.export())


@pytest.mark.long
def test_a_shard_that_dies_during_a_restore_is_reported_as_lost_so_that_a_job_restarts(
    tmp_path: Path,
) -> None:
    saves, pools = tmp_path / "saves", tmp_path / "pools"

    def restore_saved(var: es.EmbeddingVariable) -> None:
        es.restore(saves, [var])

    def restore_persisted(var: es.EmbeddingVariable) -> None:
        es.restore_persisted([var], pools)

    for storage, save, restore, part_of_it in (
        (None, lambda var: es.save(saves, [var], 5), restore_saved, "restore"),
        (
            durable(pools),
            lambda var: es.persist([var], pools, global_step=5),
            restore_persisted,
            "restore_persisted",
        ),
    ):
        with variable(shards=2, storage_option=storage) as there:
            train(there, seed=1)
            save(there)
            living, dying = remote_shards(there)
            setattr(living, part_of_it, after_death_of(dying, getattr(living, part_of_it)))
            with pytest.raises(ShardLostError, match=r"items.part1 of 2 .* can't be reached"):
                restore(there)


def after_death_of(shard: RemoteShard, call: Callable[..., None]) -> Callable[..., None]:
    def die_and_call(*arguments: Any) -> None:
        os.kill(shard.process_id, signal.SIGKILL)
        call(*arguments)

    return die_and_call


def test_a_shard_that_died_unnoticed_is_reported_by_the_next_call() -> None:
    with local_and_sharded(2) as (_, there):
        os.kill(remote_shards(there)[1].process_id, signal.SIGKILL)
        with pytest.raises(ShardLostError, match=TELLS_WHAT_TO_DO):
            there.close()


def test_a_stopped_shard_is_reported_instead_of_waited_for() -> None:
    with local_and_sharded(2) as (_, there):
        train(there, seed=1)
        stopped = remote_shards(there)[1]
        connections = stopped.server._connections
        connections._silence_s = 1.0
        while connections._idle:
            connections._idle.pop().close()
        os.kill(stopped.process_id, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(ShardLostError, match="no sign of life for 1 s"):
                    there.lookup(np.arange(100))
            with pytest.raises(ShardLostError, match="no sign of life for 1 s"):
                there.stats()
        finally:
            os.kill(stopped.process_id, signal.SIGKILL)


def test_a_client_without_the_token_is_not_served() -> None:
    import socket

    from embstore.cluster.rows import wire

    with local_and_sharded(1) as (_, there):
        (shard,) = remote_shards(there)
        address = shard.server.address
        assert address.host == "127.0.0.1"
        with socket.create_connection((address.host, address.port), 10) as stranger:
            stranger.settimeout(10)
            stranger.sendall(wire.MAGIC + bytes(wire.TOKEN_BYTES))
            assert stranger.recv(8) == b""
        train(there, seed=1)


def test_an_error_that_is_not_from_embstore_is_named() -> None:
    from embstore.cluster.rows import wire

    packed = wire.pack_refusals([None, MemoryError("no room")])
    done, error = wire.unpack_refusals(packed, ["the shard other", "the shard var"])
    assert done is None
    assert type(error) is EmbStoreError
    assert str(error) == "MemoryError: no room (the shard var)"


@pytest.mark.long
def test_a_table_that_keeps_its_files_is_closed_although_a_shard_died(tmp_path: Path) -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        [None, tmp_path],
        [32 * 48, 1 << 20],
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )

    def make(**where: Any) -> es.EmbeddingVariable:
        return es.get_embedding_variable(
            "var",
            3,
            optimizer=es.optimizers.Adam(0.1),
            ev_option=es.EmbeddingVariableOption(storage_option=storage),
            **where,
        )

    with make(partition_num=2) as var:
        train(var, seed=1)
        kept = var.export()
    var = make(shards=2)
    train(var, seed=2)
    living, dying = remote_shards(var)
    os.kill(dying.process_id, signal.SIGKILL)
    with pytest.raises(ShardLostError, match=TELLS_WHAT_TO_DO):
        var.close()
    var.close()  # the loss has been reported
    assert_gone([living.process_id])
    with make(partition_num=2) as again:
        assert_same(again.export(), kept)  # the newest rows that both shards have
