"""One server process holds shards of all tables of a program or a job. Kills of it are handled."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import assert_gone, command, descendants
from ray_node import wait_until_taken
from sharded import MIB, combine_workers_parts, remote_shards

import embstore as es
from embstore.errors import ShardLostError

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]

DIM = 4
TABLES = 5
STEPS = 12
EVERY = 4  # number of steps between checkpoints
KILLED_AT = 6

Tables = Sequence[es.EmbeddingVariable]


@contextlib.contextmanager
def tables(count: int, **where: Any) -> Iterator[Tables]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                es.get_embedding_variable(
                    f"table{number}",
                    DIM,
                    initializer=es.initializers.RandomUniform(-1.0, 1.0, seed=number),
                    optimizer=es.optimizers.Adam(0.05),
                    **where,
                )
            )
            for number in range(count)
        ]


def processes(tables: Tables) -> set[int]:
    return {shard.process_id for table in tables for shard in remote_shards(table)}


def requests(ray: Any, tables: Tables) -> list[dict[str, int]]:
    """Returns the request counts of each server."""
    actors: dict[int, Any] = {
        shard.process_id: shard.server.actor for table in tables for shard in remote_shards(table)
    }
    return [ray.get(actor._handle.status.remote()).requests for actor in actors.values()]


def python_processes() -> set[int]:
    return {process for process in descendants(os.getpid()) if "ServerActor" in command(process)}


@pytest.mark.long
def test_26_tables_of_2_shards_are_2_processes_which_end_with_the_last_table(ray: Any) -> None:
    before = python_processes()
    with tables(26, shards=2) as many:
        servers = processes(many)
        assert len(servers) == 2
        assert python_processes() - before == servers, "and no other is started"
        ids = [np.arange(10)] * 26
        es.lookup_many(many, ids, train=True)
        es.apply_many(many, ids, [np.ones((10, DIM), np.float32)] * 26)
        asked = [{"LOOK_UP": 1, "PREPARE": 1, "COMMIT": 1}] * 2
        assert requests(ray, many) == asked
        for table in many[1:]:
            table.close()
        assert many[0].total_count() == (10, DIM), "it goes on"
    assert_gone(servers)


@pytest.mark.long
def test_tables_with_more_shards_start_the_missing_servers() -> None:
    with tables(2, shards=1) as few:
        assert len(processes(few)) == 1
        with tables(2, shards=3) as more:
            assert len(processes(more)) == 3
            assert processes(few) < processes(more)


def test_tables_that_need_pmem_are_at_the_same_servers(ray: Any, tmp_path: Path) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_PMEM, tmp_path, [MIB, 64 * MIB])
    wait_until_taken(ray, 0)
    with tables(2, shards=2) as plain, tables(3, shards=2, ev_option=option(storage)) as in_pmem:
        assert processes(in_pmem) == processes(plain)
        wait_until_taken(ray, 6 / 16)
    wait_until_taken(ray, 0)


def option(storage: es.StorageOption) -> es.EmbeddingVariableOption:
    return es.EmbeddingVariableOption(storage_option=storage)


@pytest.mark.long
def test_a_killed_server_is_reported_by_all_its_tables_and_changes_none() -> None:
    with tables(3, shards=2) as many:
        ids = [np.arange(50)] * 3
        grads = [np.ones((50, DIM), np.float32)] * 3
        es.apply_many(many, ids, grads)
        living = [remote_shards(table)[0] for table in many]
        dying = remote_shards(many[0])[1].process_id
        assert {shard.process_id for shard in living} == processes(many) - {dying}
        before = [shard.export() for shard in living]
        os.kill(dying, signal.SIGKILL)
        for use in (
            lambda: es.apply_many(many, ids, grads),
            lambda: es.lookup_many(many, ids, train=True),
            lambda: many[2].lookup([1, 2, 3, 4, 5]),
        ):
            with pytest.raises(ShardLostError, match=r"part1 of 2 on node 127.0.0.1 can't be reac"):
                use()
        for shard, rows in zip(living, before, strict=True):
            np.testing.assert_array_equal(shard.export().values, rows.values)
        # Another table's shard goes to a living server, although no table has been closed yet.
        with tables(1, shards=2) as (other,):
            assert dying not in processes([other])
            other.apply_gradients(ids[0], grads[0])
            assert other.total_count() == (50, DIM)


@pytest.mark.long
def test_a_server_that_was_silent_for_a_while_can_hold_new_tables() -> None:
    with tables(1, shards=1) as (old,):
        (shard,) = remote_shards(old)
        connections = shard.server._connections
        connections._silence_s = 1.0
        while connections._idle:
            connections._idle.pop().close()
        os.kill(shard.process_id, signal.SIGSTOP)
        try:
            with pytest.raises(ShardLostError, match="no sign of life for 1 s"):
                old.lookup([1])
        finally:
            os.kill(shard.process_id, signal.SIGCONT)
        with tables(1, shards=1) as (new,):
            assert processes([new]) == processes([old])
            new.apply_gradients([1], np.ones((1, DIM), np.float32))
            assert new.total_count() == (1, DIM)


@pytest.mark.long
def test_a_server_that_is_killed_in_the_middle_of_a_step_of_many_tables_leaves_no_half_step(
    tmp_path: Path,
) -> None:
    rows, _ = es.cluster.run(train, tmp_path, workers=2, checkpoints=tmp_path / "checkpoints")
    assert (tmp_path / "killed").exists()
    for got, wanted in zip(rows, trained_here(), strict=True):
        for column, values in wanted.items():
            np.testing.assert_array_equal(got[column], values, err_msg=column)


def train(worker: es.cluster.Worker, folder: Path) -> list[dict[str, NDArray[Any]]] | None:
    with tables(TABLES, shards=2) as many:
        found = worker.restore(many)
        for step in range(found.step if found else 0, STEPS):
            ids = batch(worker.rank, step)
            looked_up = es.lookup_many(many, ids, train=True)
            if step == KILLED_AT and worker.generation == 0:
                kill_in_the_middle(worker, many, folder)
            es.apply_many(many, ids, [np.tanh(found_rows) for found_rows in looked_up], step)
            if (step + 1) % EVERY == 0:
                with worker.checkpoint(step + 1, many):
                    pass
        worker.meet()
        return [table.export() for table in many] if worker.rank == 0 else None


def kill_in_the_middle(worker: es.cluster.Worker, many: Tables, folder: Path) -> None:
    """Kills a server when both have worker 0's part of the step and wait for worker 1's."""
    if worker.rank == 1:
        ray = pytest.importorskip("ray")
        while any(asked.get("PREPARE", 0) < 2 * KILLED_AT + 1 for asked in requests(ray, many)):
            time.sleep(0.01)
        victim = remote_shards(many[0])[1].process_id
        threading.Timer(0.01, os.kill, (victim, signal.SIGKILL)).start()
        (folder / "killed").touch()


def batch(rank: int, step: int) -> list[NDArray[np.int64]]:
    random = np.random.default_rng([rank, step])
    return [np.minimum(random.zipf(1.3, 30), 50) for _ in range(TABLES)]


def trained_here() -> list[dict[str, NDArray[Any]]]:
    """Returns the rows that one process gets from both workers' parts."""
    with tables(TABLES) as many:
        for step in range(STEPS):
            of_workers = [batch(rank, step) for rank in range(2)]
            for number, table in enumerate(many):
                ids = [of_worker[number] for of_worker in of_workers]
                grads = [np.tanh(table.lookup(each, train=True)) for each in ids]
                parts = combine_workers_parts(zip(ids, grads, strict=True), workers=2)
                table.apply_gradients(*parts, step)
        return [table.export() for table in many]
