"""Several tables at the same servers are looked up and trained with one request to each."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from row_connection import DIM, breaking_wires, served, variable_here
from sharded import assert_same, combine_workers_parts, remote_shards

import embstore as es
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.rows.server_link import ServerLink
from embstore.errors import ClosedError, EmbStoreError, StoreFullError, WorkerLostError
from embstore.table import remote_shards as remote_shards_module
from embstore.table.remote_shards import LookUpPart, UniqueKeys, UpdatePart

pytestmark = pytest.mark.timeout(120)

TABLES = 5
STEPS = 12

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
T = TypeVar("T")


def batches(worker: int, step: int) -> tuple[list[Ids], list[Rows]]:
    """Returns ids and gradients of each table, of different sizes; some are empty."""
    random = np.random.default_rng([worker, step])
    ids = [np.minimum(random.zipf(1.3, size), 40) for size in random.integers(0, 60, TABLES)]
    return ids, [random.standard_normal((each.size, DIM)).astype(np.float32) for each in ids]


def trained_here(workers: int) -> list[es.EmbeddingVariable]:
    """Returns tables of this process, trained by the means of all workers' gradients."""
    tables = [variable_here() for _ in range(TABLES)]
    for step in range(STEPS):
        of_workers = [batches(worker, step) for worker in range(workers)]
        for table, var in enumerate(tables):
            parts = [(ids[table], grads[table]) for ids, grads in of_workers]
            var.apply_gradients(*combine_workers_parts(parts, workers))
    return tables


def assert_same_rows(got: list[es.EmbeddingVariable], wanted: list[es.EmbeddingVariable]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert_same(one.export(), other.export())


def test_a_step_is_one_request_of_look_ups_and_one_of_updates_to_each_server() -> None:
    with served(2, PushRules(workers=2)) as there:
        workers = [there.many_of_worker(worker, TABLES) for worker in range(2)]

        def step(worker: int) -> None:
            ids, grads = batches(worker, 0)
            es.lookup_many(workers[worker], ids, train=True)
            es.apply_many(workers[worker], ids, grads)

        with ThreadPoolExecutor(2) as threads:
            for _ in range(3):
                for done in [threads.submit(step, worker) for worker in range(2)]:
                    done.result()
        for server in there.servers:
            # From 2 workers in 3 steps. COMMIT says which of the updates are applied.
            assert server.requests() == {"LOOK_UP": 6, "PREPARE": 6, "COMMIT": 6}


def test_tables_of_one_shard_are_trained_by_one_request_alone() -> None:
    with served(1, PushRules()) as there:
        tables = there.many_of_worker(0, TABLES)
        es.apply_many(tables, *batches(0, 0))
        assert there.servers[0].requests() == {"APPLY": 1}


@pytest.mark.parametrize("how", ["apply", "prepare"])
def test_a_push_without_ids_leaves_the_gradients_of_another_tables_push_alone(how: str) -> None:
    """The second table's requests use the connection that the first table's push came by."""
    ids, ones = np.arange(50), np.ones((50, DIM), np.float32)
    with served(1, PushRules()) as there:
        first, second = there.many_of_worker(0, 2)
        second.apply_gradients(ids, ones)
        (push,) = first._update_parts(UniqueKeys(ids, 1), ones)
        server = push.shard.server
        assert server.prepare([push]).wait() == [None]
        (empty,) = second._update_parts(UniqueKeys(ids[:0], 1), ones[:0])
        if how == "apply":
            assert server.apply([empty], None).wait() == [None]
        else:
            assert server.prepare([empty]).wait() == [None]
            assert server.commit([empty], None).wait() == [None]
        second.lookup(ids, train=True)
        assert server.commit([push], None).wait() == [None]
        # Both tables had the same initial rows and the same training.
        np.testing.assert_array_equal(first.lookup(ids), second.lookup(ids))


@pytest.mark.parametrize("shards", [1, 2])
def test_look_ups_of_many_tables_are_those_of_each(shards: int) -> None:
    with served(shards, PushRules()) as there:
        tables = there.many_of_worker(0, TABLES)
        es.apply_many(tables, *batches(0, 0))
        ids = [*batches(0, 0)[0], np.array([[3, -7], [3, 1 << 60]])]
        several = [*tables, tables[0]]  # one of them twice
        for train in (True, False):
            rows = es.lookup_many(several, ids, train=train)
            for table, of_table, found in zip(several, ids, rows, strict=True):
                np.testing.assert_array_equal(found, table.lookup(of_table, train=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (1, 3), (2, 2)])
def test_rows_are_the_same_to_the_bit_over_wires_that_break(
    workers: int, shards: int, seed: int
) -> None:
    with (
        breaking_wires(seed, at_least=3) as breaking,
        served(shards, PushRules(workers=workers)) as there,
    ):
        replicas = [there.many_of_worker(worker, TABLES, breaking) for worker in range(workers)]

        def train(worker: int) -> None:
            for step in range(STEPS):
                ids, grads = batches(worker, step)
                es.lookup_many(replicas[worker], ids, train=True)
                es.apply_many(replicas[worker], ids, grads)

        in_all_workers(workers, train)
        assert_same_rows(replicas[-1], trained_here(workers))


def test_workers_may_name_their_tables_in_other_orders_and_by_other_groups() -> None:
    with served(2, PushRules(workers=2)) as there:
        replicas = [there.many_of_worker(worker, TABLES) for worker in range(2)]

        def backwards(step: int) -> None:
            ids, grads = batches(0, step)
            es.apply_many(replicas[0][::-1], ids[::-1], grads[::-1])

        def one_by_one(step: int) -> None:
            for table, ids, grads in zip(replicas[1], *batches(1, step), strict=True):
                table.apply_gradients(ids, grads)

        with ThreadPoolExecutor(2) as threads:
            for step in range(STEPS):
                for done in [threads.submit(backwards, step), threads.submit(one_by_one, step)]:
                    done.result()
        assert_same_rows(replicas[1], trained_here(2))


def test_a_step_waits_for_the_other_workers_once() -> None:
    """It doesn't wait once per table: the server has all tables' parts while a worker sleeps."""
    with served(2, PushRules(workers=2, patience_s=0.5)) as there:
        first, _ = (there.many_of_worker(worker, TABLES) for worker in range(2))
        ids = [np.arange(10) for _ in first]
        grads = [np.ones((10, DIM), np.float32) for _ in first]
        began = time.monotonic()
        with pytest.raises(WorkerLostError, match=r"from worker 1 for 0\.5 s"):
            es.apply_many(first, ids, grads)
        assert time.monotonic() - began < 0.5 * TABLES
        assert all(table.total_count()[0] == 0 for table in first)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_step_that_one_table_has_no_room_for_trains_no_table(workers: int, shards: int) -> None:
    with served(shards, PushRules(workers=workers), 64 * 1024) as there:
        replicas = [there.many_of_worker(worker, TABLES) for worker in range(workers)]
        full = 3
        ids = [np.arange(10) + 1 for _ in range(TABLES)]

        def push(worker: int) -> None:
            es.apply_many(replicas[worker], ids, grads_of(ids))

        def push_too_many(worker: int) -> str:
            too_many = [*ids]
            too_many[full] = np.arange(10_000)
            with pytest.raises(StoreFullError, match=rf"^var{full}") as refused:
                es.apply_many(replicas[worker], too_many, grads_of(too_many))
            return str(refused.value)

        for refused in range(3):
            for told in in_all_workers(workers, push_too_many):
                assert "on node 127.0.0.1" in told
            assert {table.total_count()[0] for table in replicas[0]} == {10 if refused else 0}
            in_all_workers(workers, push)  # training continues
            for table in replicas[0]:
                assert set(table.get_frequency(ids[0]).tolist()) == {(refused + 1) * workers}


def test_a_step_with_a_table_that_is_closed_at_its_server_trains_no_table() -> None:
    with served(2, PushRules()) as there:
        tables = there.many_of_worker(0, TABLES)
        there.servers[1].remove(2)
        ids = [np.arange(10) for _ in tables]
        with pytest.raises(ClosedError, match=r"var2"):
            es.apply_many(tables, ids, grads_of(ids))
        assert [table.total_count()[0] for table in tables] == [0] * TABLES
        others = [table for table in tables if table is not tables[2]]
        es.apply_many(others, ids[1:], grads_of(ids[1:]))
        assert [table.total_count()[0] for table in others] == [10] * len(others)


@pytest.mark.parametrize("train", [False, True])
def test_a_table_that_is_closed_at_its_server_keeps_no_other_from_being_looked_up(
    train: bool,
) -> None:
    with served(1, PushRules()) as there:
        tables = there.many_of_worker(0, TABLES)
        ids = [np.arange(3 + table) for table in range(TABLES)]
        wanted = es.lookup_many(tables, ids)
        there.servers[0].remove(2)
        shards = [remote_shards(table)[0] for table in tables]
        rows = [np.zeros_like(each) for each in wanted]
        counts = [np.ones(each.size, np.uint32) if train else None for each in ids]
        parts = [LookUpPart(*part) for part in zip(shards, ids, rows, counts, strict=True)]
        refusals = shards[0].server.look_up(parts, train).wait()
        assert [type(refusal) for refusal in refusals] == [
            ClosedError if table == 2 else type(None) for table in range(TABLES)
        ]
        for table in set(range(TABLES)) - {2}:
            np.testing.assert_array_equal(rows[table], wanted[table])


def test_a_step_with_a_table_that_this_worker_has_closed_is_not_sent() -> None:
    with served(2, PushRules(workers=2, patience_s=20)) as there:
        first, second = (there.many_of_worker(worker, TABLES) for worker in range(2))
        first[2].close()
        ids = [np.arange(10) for _ in first]
        with pytest.raises(ClosedError, match=r"var2"):
            es.apply_many(first, ids, grads_of(ids))
        assert all("PREPARE" not in server.requests() for server in there.servers)
        # So the next step is the first for both workers.
        some = [0, 1, 3, 4]

        def push(worker: int) -> None:
            tables = (first, second)[worker]
            es.apply_many([tables[i] for i in some], [ids[i] for i in some], grads_of(ids[:4]))

        in_all_workers(2, push)
        for i in some:
            assert set(second[i].get_frequency(ids[i]).tolist()) == {2}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [1, 2])
def test_steps_that_are_refused_by_chance_train_all_of_their_tables_or_none(
    workers: int, seed: int
) -> None:
    """The connections break, until some of the tables are full. The final rows must show exactly
    the steps that weren't refused.
    """
    chance = np.random.default_rng(seed)
    # For each step: its tables, and how many keys each worker brings for each of them.
    steps = [
        {
            int(table): chance.integers(0, 40, workers).tolist()
            for table in chance.permutation(TABLES)[: chance.integers(1, TABLES + 1)]
        }
        for _ in range(40)
    ]

    def keys(step: int, table: int, worker: int) -> Ids:
        """Returns keys that no other step or worker has."""
        return (np.arange(steps[step][table][worker]) + 200 * step) * workers + worker

    shards = 1 + seed % 2
    with (
        breaking_wires(seed) as breaking,
        served(shards, PushRules(workers=workers), 6 * 1024 * workers // shards) as there,
    ):
        replicas = [there.many_of_worker(worker, TABLES, breaking) for worker in range(workers)]

        def train(worker: int) -> list[bool]:
            applied = []
            for step, tables in enumerate(steps):
                ids = [keys(step, table, worker) for table in tables]
                try:
                    es.apply_many([replicas[worker][t] for t in tables], ids, grads_of(ids))
                except StoreFullError:
                    applied.append(False)
                else:
                    applied.append(True)
            return applied

        applied, *of_others = in_all_workers(workers, train)
        assert all(other == applied for other in of_others)
        assert 0 < sum(applied) < len(steps)
        for table, var in enumerate(replicas[0]):
            wanted = [
                keys(step, table, worker)
                for step, tables in enumerate(steps)
                for worker in range(workers)
                if applied[step] and table in tables
            ]
            rows = var.export()
            np.testing.assert_array_equal(rows["keys"], np.sort(np.concatenate(wanted)))
            assert set(rows["freqs"].tolist()) == {1}


def grads_of(ids: list[Ids]) -> list[Rows]:
    return [np.ones((each.size, DIM), np.float32) for each in ids]


def in_all_workers(workers: int, call: Callable[[int], T]) -> list[T]:
    """Returns the result of each worker's call; all calls run at the same time."""
    with ThreadPoolExecutor(workers) as threads:
        return [done.result() for done in [threads.submit(call, w) for w in range(workers)]]


@pytest.mark.timeout(60)  # pushes in a deadlock would wait forever
@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_pushes_of_many_tables_that_compete_for_the_last_room_end(seed: int) -> None:
    rules = PushRules(workers=3, is_synchronous=False)
    with served(2, rules, 64 * 1024) as there:
        workers = [there.many_of_worker(worker, 3) for worker in range(3)]
        applied: list[set[int]] = [set() for _ in range(3)]  # by table
        refused = threading.Event()

        def push(worker: int) -> None:
            random = np.random.default_rng([seed, worker])
            for step in range(40):
                tables = random.permutation(3)[: random.integers(1, 4)]
                fresh = (np.arange(80) + 80 * step) * 3 + worker
                grads = np.ones((fresh.size, DIM), np.float32)
                try:
                    es.apply_many(
                        [workers[worker][table] for table in tables],
                        [fresh] * tables.size,
                        [grads] * tables.size,
                    )
                except StoreFullError:
                    refused.set()
                    is_applied = False
                else:
                    is_applied = True
                for table in tables:
                    is_there = workers[worker][table].get_frequency(fresh) > 0
                    assert set(is_there.tolist()) == {is_applied}
                    applied[table] |= set(fresh[is_there].tolist())

        with ThreadPoolExecutor(3) as threads:
            for done in [threads.submit(push, worker) for worker in range(3)]:
                done.result()
        assert refused.is_set(), "there was room for all"
        for table, keys in enumerate(applied):
            assert set(workers[0][table].export()["keys"].tolist()) == keys


def test_arguments_that_do_not_fit_are_found_before_anything_is_sent() -> None:
    with served(2, PushRules()) as there:
        tables = there.many_of_worker(0, 2)
        with pytest.raises(EmbStoreError, match=r"^var1: grads"):
            es.apply_many(
                tables, [[1], [1]], [np.ones((1, DIM), np.float32), np.ones((2, DIM), np.float32)]
            )
        assert [table.total_count()[0] for table in tables] == [0, 0]


def test_rows_that_are_read_ahead_do_not_wait_for_untrained_tables() -> None:
    with served(2, PushRules(patience_s=5)) as there:
        trained, frozen = there.many_of_worker(0, 2)
        steps = [batches(0, step)[0][:2] for step in range(6)]
        ids_of = {trained: lambda ids: ids[0], frozen: lambda ids: ids[1]}
        began = time.monotonic()
        for ids in es.prefetching(steps, ids_of):
            rows = trained.lookup(ids[0], train=True)
            frozen.lookup(ids[1], train=True)
            trained.apply_gradients(ids[0], np.ones_like(rows))
        assert time.monotonic() - began < 4


def test_tables_are_read_ahead_by_one_request_to_each_server() -> None:
    with served(2, PushRules()) as there:
        tables = there.many_of_worker(0, TABLES)
        steps = [batches(0, step) for step in range(4)]
        ids_of = {
            table: lambda batch, number=number: batch[0][number]
            for number, table in enumerate(tables)
        }
        for ids, grads in es.prefetching(steps, ids_of):
            for table, of_table in zip(tables, ids, strict=True):
                table.lookup(of_table, train=True)
            es.apply_many(tables, ids, grads)
        for server in there.servers:
            assert server.requests() == {"LOOK_UP": 4, "PREPARE": 4, "COMMIT": 4}


@pytest.mark.parametrize("tables", [1, 3])
def test_ctrl_c_during_the_commit_of_a_step_still_trains_all_tables(
    tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ServerLink.commit

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return commit(*arguments)

    with served(2, PushRules()) as there:
        many = there.many_of_worker(0, tables)
        ids, grads = np.arange(20), np.ones((20, DIM), np.float32)
        with monkeypatch.context() as patched:
            patched.setattr(ServerLink, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                es.apply_many(many, [ids] * tables, [grads] * tables)
        es.apply_many(many, [ids] * tables, [grads] * tables)
        for table in many:
            assert table.get_frequency(ids).tolist() == [2] * 20


def test_ctrl_c_before_the_commit_of_a_step_leaves_nothing_prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare = remote_shards_module._prepare

    def interrupted(parts: Sequence[UpdatePart]) -> Any:
        prepare(parts)
        raise KeyboardInterrupt

    with served(2, PushRules()) as there:
        many = there.many_of_worker(0, 2)
        ids, grads = np.arange(20), np.ones((20, DIM), np.float32)
        with monkeypatch.context() as patched:
            patched.setattr(remote_shards_module, "_prepare", interrupted)
            with pytest.raises(KeyboardInterrupt):
                es.apply_many(many, [ids] * 2, [grads] * 2)
        saving = threading.Thread(target=lambda: es.save(tmp_path / "saved", many, 1), daemon=True)
        saving.start()
        saving.join(10)
        is_saved = not saving.is_alive()
        es.apply_many(many, [ids] * 2, [grads] * 2)
        saving.join()
        assert is_saved
        assert [table.get_frequency([3]).tolist() for table in many] == [[1], [1]]
