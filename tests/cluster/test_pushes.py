"""A batch of gradients for remote shards is applied once, whatever happens on its way."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from row_connection import DIM, breaking_wires, served, variable_here
from sharded import assert_same, combine_workers_parts

import embstore as es
from embstore.cluster.rows import wire
from embstore.cluster.rows.pushes import PushRules
from embstore.errors import (
    InvalidArgumentError,
    ShardLostError,
    StorageError,
    WorkerLostError,
)
from embstore.table.remote_shards import UniqueKeys, UpdatePart

pytestmark = pytest.mark.timeout(120)

STEPS = 30

Batch = tuple[NDArray[np.int64], NDArray[np.float32]]


def batch(worker: int, step: int) -> Batch:
    random = np.random.default_rng([worker, step])
    ids = np.minimum(random.zipf(1.3, 50), 60).astype(np.int64) * 7919 - 40_000
    return ids, random.standard_normal((50, DIM)).astype(np.float32)


def train(var: es.EmbeddingVariable, worker: int, pause: Callable[[], None] = lambda: None) -> None:
    for step in range(STEPS):
        ids, grads = batch(worker, step)
        var.lookup(ids, train=True)
        pause()
        var.apply_gradients(ids, grads)


def trained_here(workers: int) -> es.EmbeddingVariable:
    """Returns a local variable, trained by all workers' gradients."""
    var = variable_here()
    for step in range(STEPS):
        parts = [batch(worker, step) for worker in range(workers)]
        var.apply_gradients(*combine_workers_parts(parts, workers))
    return var


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_rows_are_the_same_to_the_bit_over_wires_that_break(
    workers: int, shards: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    pauses = iter(random.exponential(0.002, 10_000).tolist())
    with (
        breaking_wires(seed, at_least=3) as breaking,
        served(shards, PushRules(workers=workers)) as variable,
    ):
        replicas = [variable.of_worker(worker, breaking) for worker in range(workers)]
        with ThreadPoolExecutor(workers) as threads:
            done = [
                threads.submit(train, replica, worker, lambda: time.sleep(next(pauses)))
                for worker, replica in enumerate(replicas)
            ]
            for each in done:
                each.result()
        rows = replicas[-1].export()
        assert_same(rows, trained_here(workers).export())
        ids = [batch(worker, step)[0] for worker in range(workers) for step in range(STEPS)]
        keys, counts = np.unique(np.concatenate(ids), return_counts=True)
        np.testing.assert_array_equal(rows["keys"], keys)
        np.testing.assert_array_equal(rows["freqs"], counts)


def test_a_push_waits_for_all_workers_and_is_seen_by_all() -> None:
    with served(2, PushRules(workers=2)) as variable:
        first, second = variable.of_worker(0), variable.of_worker(1)
        before = first.lookup([1, 2, 3], train=True)
        pushing = threading.Thread(target=lambda: first.apply_gradients([1], one_row(2)))
        pushing.start()
        pushing.join(0.3)
        assert pushing.is_alive()
        np.testing.assert_array_equal(first.lookup([1, 2, 3], train=True), before)
        second.apply_gradients([2], one_row(2))
        pushing.join(20)
        for var in (first, second):
            after = var.lookup([1, 2, 3], train=True)
            assert (after[:2] != before[:2]).all()
            np.testing.assert_array_equal(after[2], before[2])


def test_a_missing_worker_is_reported_and_the_push_is_over() -> None:
    with served(2, PushRules(workers=2, patience_s=0.3)) as variable:
        first, second = variable.of_worker(0), variable.of_worker(1)
        before = first.lookup([1, 2], train=True)
        with pytest.raises(WorkerLostError, match=r"worker 1 for 0.3 s.*last checkpoint"):
            first.apply_gradients([1, 2], one_row(2, 2))
        with pytest.raises(WorkerLostError, match="worker 1"):  # comes too late
            second.apply_gradients([1, 2], one_row(2, 2))
        np.testing.assert_array_equal(first.lookup([1, 2], train=True), before)


def test_workers_that_train_in_another_order_raise_an_error() -> None:
    with served(1, PushRules(workers=2, patience_s=5)) as variable:
        first, second = variable.of_worker(0), variable.of_worker(1)
        second._shards[0].begin_push()  # type: ignore[attr-defined]
        with pytest.raises(InvalidArgumentError, match=r"worker 1 is at push 2.*at 1: all workers"):
            second.apply_gradients([1], one_row(1))
        stranger = variable.of_worker(2)
        with pytest.raises(InvalidArgumentError, match="worker 2 pushes to a shard that was opene"):
            stranger.apply_gradients([1], one_row(1))
        assert first.total_count() == (0, DIM)


def test_asynchronous_workers_do_not_wait_for_each_other() -> None:
    rules = PushRules(workers=2, is_synchronous=False)
    with served(2, rules) as variable:
        first, second = variable.of_worker(0), variable.of_worker(1)
        for _ in range(3):
            first.apply_gradients([1, 2], one_row(1, 2))
        second.apply_gradients([2], one_row(1))
        assert first.get_frequency([1, 2]).tolist() == [3, 4]


@pytest.mark.timeout(60)  # a blocked push would wait forever
@pytest.mark.parametrize("dies", [0, 1])
def test_a_worker_that_dies_in_the_middle_of_an_asynchronous_push_blocks_no_other(
    tmp_path: Path, dies: int
) -> None:
    rules = PushRules(workers=2, is_synchronous=False, patience_s=0.5)
    with served(2, rules, 64 * 1024) as variable:
        workers = [variable.of_worker(worker) for worker in range(2)]
        dead, living = workers[dies], workers[1 - dies]
        ids = np.arange(2000)  # near the capacity, where a shard holds one push at a time
        left = dead._update_parts(UniqueKeys(ids, 2), one_row(1, ids.size))
        assert [part.shard.server.prepare([part]).wait() for part in left] == [[None], [None]]
        living.apply_gradients(ids + 5000, one_row(1, ids.size))
        es.save(tmp_path / "saved", [living], 1)  # waits until no push is prepared
        assert (living.get_frequency(ids) == 0).all()
        # The worker was slow rather than dead: it gets an error.
        for part in left:
            (told,) = part.shard.server.commit([part], None).wait()
            with pytest.raises(WorkerLostError, match=rf"worker {dies} has neither committed nor"):
                raise told or AssertionError("nothing")


def test_an_abort_by_one_worker_does_not_undo_the_commit_of_another() -> None:
    """Every shard had prepared the push, so the first worker may have applied it."""
    ids, grads = np.array([1, 2]), one_row(1, 2)
    with served(2, PushRules(workers=2)) as variable:
        workers = [variable.of_worker(worker) for worker in range(2)]
        before = [shard.lookup(ids, train=True) for shard in variable.local]
        pushes = [
            [
                UpdatePart(shard, shard.begin_push(), ids, grads, None)
                for shard in var._remote_shards
            ]
            for var in workers
        ]
        waiting = [part.shard.server.prepare([part]) for of_worker in pushes for part in of_worker]
        assert [later.wait() for later in waiting] == [[None]] * 4
        (first, second), others = pushes
        assert first.shard.server.commit([first], None).wait() == [None]
        for part in others:
            assert part.shard.server.abort([part]).wait() == [None]
        assert second.shard.server.commit([second], None).wait() == [None]
        for shard, rows in zip(variable.local, before, strict=True):
            assert (shard.lookup(ids, train=True) != rows).all()
        with ThreadPoolExecutor(2) as threads:  # then both continue
            for done in [threads.submit(var.apply_gradients, ids, grads) for var in workers]:
                done.result()


def test_a_worker_that_gave_a_push_up_waits_until_the_others_have_ended_it() -> None:
    ids, grads = np.array([1, 2]), one_row(1, 2)
    with served(1, PushRules(workers=2)) as variable:
        workers = [variable.of_worker(worker) for worker in range(2)]
        before = workers[0].lookup(ids, train=True)
        parts = [var._update_parts(UniqueKeys(ids, 1), grads)[0] for var in workers]
        waiting = [part.shard.server.prepare([part]) for part in parts]
        assert [later.wait() for later in waiting] == [[None], [None]]
        first, second = parts
        first.shard.server.abort([first]).wait()
        with ThreadPoolExecutor(2) as threads:
            next_of_first = threads.submit(workers[0].apply_gradients, ids, grads)
            time.sleep(0.2)
            assert not next_of_first.done()
            np.testing.assert_array_equal(workers[0].lookup(ids, train=True), before)
            second.shard.server.abort([second]).wait()
            workers[1].apply_gradients(ids, grads)
            next_of_first.result()
        assert workers[0].get_frequency(ids).tolist() == [2, 2], "once each"


def test_a_push_that_was_applied_stays_so_when_the_next_is_refused() -> None:
    ids, grads = np.array([1, 2]), one_row(1, 2)
    with served(1, PushRules(workers=2)) as variable:
        workers = [variable.of_worker(worker) for worker in range(2)]
        first, second = (var._update_parts(UniqueKeys(ids, 1), grads)[0] for var in workers)
        waiting = [part.shard.server.prepare([part]) for part in (first, second)]
        assert [later.wait() for later in waiting] == [[None], [None]]
        assert second.shard.server.commit([second], None).wait() == [None]
        (interrupted,) = workers[1]._update_parts(UniqueKeys(ids, 1), grads)
        interrupted.shard.server.abort([interrupted]).wait()
        # The first worker lost the answer.
        assert first.shard.server.prepare([first]).wait() == [None]
        assert first.shard.server.commit([first], None).wait() == [None]
        assert workers[0].get_frequency(ids).tolist() == [2, 2]


def test_a_push_that_was_refused_is_refused_again_whatever_was_refused_after_it() -> None:
    ids, grads = np.array([1, 2]), one_row(1, 2)
    with served(1, PushRules(workers=2)) as variable:
        workers = [variable.of_worker(worker) for worker in range(2)]
        (lost,) = workers[0]._update_parts(UniqueKeys(ids, 1), grads)
        for _ in range(2):
            (interrupted,) = workers[1]._update_parts(UniqueKeys(ids, 1), grads)
            interrupted.shard.server.abort([interrupted]).wait()
        (told,) = lost.shard.server.prepare([lost]).wait()
        assert "given up" in str(told)


def test_pushes_that_a_worker_skipped_are_refused() -> None:
    with served(1, PushRules()) as variable:
        var = variable.of_worker(0)
        *lost, last = (
            var._update_parts(UniqueKeys(np.arange(4), 1), one_row(1, 4))[0] for _ in "123"
        )
        assert last.shard.server.prepare([last]).wait() == [None]
        for part in lost:
            (told,) = part.shard.server.prepare([part]).wait()
            assert "its worker gave it up" in str(told)


def test_a_push_that_was_interrupted_is_given_up_by_the_next() -> None:
    with served(1, PushRules()) as variable:
        var = variable.of_worker(0)
        (interrupted,) = var._update_parts(UniqueKeys(np.arange(4), 1), one_row(1, 4))
        interrupted.shard.server.prepare([interrupted]).wait()
        var.apply_gradients([5], one_row(1))
        assert var.export()["keys"].tolist() == [5]


def test_an_answer_that_takes_longer_than_silence_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("embstore.cluster.rows.wire.WAITING_INTERVAL_S", 0.1)
    with served(1, PushRules(workers=2, patience_s=30)) as variable:
        first, second = (variable.of_worker(worker, silence_s=0.5) for worker in range(2))
        with ThreadPoolExecutor(1) as threads:
            pushed = threads.submit(first.apply_gradients, [1], one_row(1))
            time.sleep(1.5)
            assert not pushed.done()
            second.apply_gradients([1], one_row(1))
            pushed.result()
        assert first.get_frequency([1]).tolist() == [2]


def test_a_silent_shard_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(1, PushRules()) as variable:
        var = variable.of_worker(0, silence_s=0.3)
        variable.servers[0]._heartbeat.close()
        awake = threading.Event()
        monkeypatch.setattr(
            "embstore.cluster.rows.row_server.look_up_together",
            lambda *_: [awake.wait(20) and None],
        )
        with pytest.raises(ShardLostError, match=r"no sign of life for 0.3 s"):
            var.lookup([1])
        awake.set()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_program_without_descriptors_loses_no_server(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with served(2, PushRules()) as variable:
        var = variable.of_worker(0)
        with monkeypatch.context() as without:
            without.setattr("embstore.cluster.rows.connections.socket.create_connection", refuse)
            with pytest.raises(StorageError, match=os.strerror(number)):
                var.lookup([1, 2, 3], train=True)
            with pytest.raises(StorageError, match=os.strerror(number)):
                var.apply_gradients([1, 2, 3], one_row(1, 3))
        assert var.total_count()[0] == 0
        var.apply_gradients([1, 2, 3], one_row(1, 3))
        assert var.get_frequency([1, 2, 3]).tolist() == [1, 1, 1]


def test_a_server_without_descriptors_or_threads_for_a_moment_serves_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(1, PushRules()) as variable:
        (server,) = variable.servers
        listener = FailingListener(server._listener)
        monkeypatch.setattr(server, "_listener", listener)
        variable.of_worker(0).lookup([1])  # served by the accept that was under way
        variable.of_worker(0, silence_s=5.0).lookup([1])
        assert not listener.errors
        start = threading.Thread.start
        refused: list[str] = []

        def start_thread(thread: threading.Thread) -> None:
            if thread.name.startswith("embstore-rows") and not refused:
                refused.append(thread.name)
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_thread)
        variable.of_worker(0, silence_s=5.0).lookup([1])
        assert refused


@pytest.mark.timeout(30)
def test_a_peer_that_sends_the_token_byte_by_byte_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise many such peers would occupy all threads, each for minutes."""
    monkeypatch.setattr("embstore.cluster.rows.row_server._GREETING_TIMEOUT_S", 0.5)
    with served(1, PushRules()) as variable:
        address = variable.servers[0].address
        with socket.create_connection((address.host, address.port), 20) as slow:
            slow.sendall(wire.MAGIC)
            with contextlib.suppress(OSError):  # the server may close it before all are sent
                for byte in address.token:
                    time.sleep(0.05)
                    slow.sendall(bytes([byte]))
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(1) == b""
        assert variable.of_worker(0).lookup([1]).shape == (1, DIM)


class FailingListener:
    """A listening socket on which some accepts fail."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.errors = [errno.ECONNABORTED, errno.EMFILE]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            number = self.errors.pop()
            raise OSError(number, os.strerror(number))
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def one_row(value: float, count: int = 1) -> NDArray[np.float32]:
    return np.full((count, DIM), value, np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_prefetching_changes_no_look_up(seed: int) -> None:
    """Orders are random, and include orders that make no sense in a program."""
    random = np.random.default_rng(seed)
    with served(1 + seed % 2, PushRules(is_synchronous=seed % 3 != 2)) as variable:
        there = variable.of_worker(0)
        here = variable_here()
        coming: list[Batch] = []
        for step in range(120):
            what = random.integers(0, 8)
            if what < 3 or not coming:
                coming.append(batch(seed, step))
                if what != 0:
                    there.prefetch(coming[-1][0])
                continue
            ids, grads = coming[0] if what < 7 else coming[-1]
            np.testing.assert_array_equal(
                there.lookup(ids, train=True), here.lookup(ids, train=True)
            )
            if what != 3:
                for var in (there, here):
                    var.apply_gradients(ids, grads)
                coming.pop(0)


def test_prefetched_rows_are_requested_before_they_are_looked_up() -> None:
    with served(2, PushRules()) as variable:
        var = variable.of_worker(0)
        ids, grads = batch(0, 0)
        var.lookup(ids, train=True)
        var.prefetch(ids[:10])
        var.prefetch(ids[10:20], ids[20:25])
        var.apply_gradients(ids, grads)
        wanted = var.lookup(np.r_[ids[:10], 5], train=True)[:10]
        deadline = time.monotonic() + 20
        while variable.local[0].stats()["hits"] + variable.local[1].stats()["hits"] < 20:
            assert time.monotonic() < deadline, "the shards have read the batch that comes first"
            time.sleep(0.01)
        asked = [shard.stats() for shard in variable.local]
        np.testing.assert_array_equal(var.lookup(ids[:10], train=True), wanted)
        assert [shard.stats() for shard in variable.local] == asked, "nothing is asked again"
        var.apply_gradients(ids, grads)
        second = var.lookup(ids[20:25], train=True)
        np.testing.assert_array_equal(second, var.lookup(ids[20:25], train=True))


def test_rows_prefetched_before_a_restore_are_not_used(tmp_path: Path) -> None:
    with served(1, PushRules()) as variable:
        var = variable.of_worker(0)
        train(var, 0)
        es.save(tmp_path / "saved", [var], 1)
        ids = batch(0, 0)[0]
        saved = var.lookup(ids, train=True)
        train(var, 1)
        var.prefetch(ids)
        es.restore(tmp_path / "saved", [var])
        np.testing.assert_array_equal(var.lookup(ids, train=True), saved)
