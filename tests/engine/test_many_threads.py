"""Many threads at once: none waits without need, and none waits for ever."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from durable_table import DIM, make_durable_table
from engine_storage import variable_with_options
from numpy.typing import NDArray
from plain_partition import partitions_of
from programs import gradients_of_ones, kept_variable, run_function

import embstore as es
from embstore.errors import StoreFullError

pytestmark = pytest.mark.timeout(200)

Call = Callable[[], object]


def many_threads_and_saves(threads: int) -> None:
    keys, batch, steps = 40_000, 4000, 4
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "rows").mkdir()
        var = kept_variable(Path(directory) / "rows", False, first_tier_rows=2000)
        everything = np.arange(keys)
        var.apply_gradients(everything, gradients_of_ones(everything))
        start = threading.Barrier(threads + 1)

        def work(number: int) -> None:
            random = np.random.default_rng(number)
            batches = [random.integers(0, keys, batch) for _ in range(steps)]
            start.wait()
            for step, ids in enumerate(batches):
                if number % 8:
                    var.apply_gradients(ids, gradients_of_ones(ids))
                else:
                    assert np.isfinite(var.lookup(ids, train=bool(step % 2))).all()

        def save() -> None:
            start.wait()
            for step in range(3):
                es.save(Path(directory) / "save", [var], step)

        with ThreadPoolExecutor(threads + 1) as pool:
            working = [pool.submit(save), *(pool.submit(work, n) for n in range(threads))]
            for done in working:
                done.result()
        applies = steps * sum(bool(number % 8) for number in range(threads))
        assert var.get_frequency(everything).sum() == keys + applies * batch
        assert var.get_version(everything).max() == applies
        var.close()


def test_160_threads_that_look_up_and_apply_beside_saves_all_end() -> None:
    run_function("test_many_threads", "many_threads_and_saves(160)", timeout=100)


def share_of_each_thread(threads: int, batches: int) -> None:
    """Every third thread serves look-ups, the others apply, until each has finished `batches`.

    One more drains the table, again and again.
    """
    keys, batch = 200_000, 2000
    with tempfile.TemporaryDirectory() as directory:
        # Each batch needs several times the room of the first tier.
        var = kept_variable(Path(directory), False, first_tier_rows=256)
        everything = np.arange(keys)
        for part in np.array_split(everything, 50):
            var.apply_gradients(part, gradients_of_ones(part))
        finished = [0] * threads
        # A thread that began before the others would get on alone.
        all_are_there = threading.Barrier(threads)

        def work(number: int) -> None:
            random = np.random.default_rng(number)
            all_are_there.wait()
            while min(finished) < batches:
                ids = random.integers(0, keys, batch)
                if number % 3 == 0:
                    var.lookup(ids)
                else:
                    var.apply_gradients(ids, gradients_of_ones(ids))
                finished[number] += 1

        def drain() -> None:
            while min(finished) < batches:
                var.drain()

        with ThreadPoolExecutor(threads + 1) as pool:
            working = [pool.submit(drain), *(pool.submit(work, n) for n in range(threads))]
            for done in working:
                done.result()
        applies = sum(count for number, count in enumerate(finished) if number % 3)
        assert var.get_frequency(everything).sum() == keys + applies * batch
        assert max(finished) < 10 * batches, f"some threads get on alone: {sorted(finished)}"
        var.close()


@pytest.mark.long
def test_each_of_100_threads_gets_its_share_although_all_wait_for_room() -> None:
    run_function("test_many_threads", "share_of_each_thread(100, 12)", timeout=100)


def checkpoints_after_refused_batches(place: Path, rounds: int) -> None:
    with make_durable_table(place, partition_num=2, cache_rows=2000, pool_bytes=3 << 20) as var:
        keys = np.arange(50_000)
        here, there = (keys[partitions_of(keys, 2) == partition] for partition in range(2))
        # The first partition makes rows for its share of the batch, and removes them again since
        # the other has no room.
        batch = np.concatenate([here[:2000], there[:12_000]])
        gradients = np.ones((batch.size, DIM), np.float32)
        trained = here[2000:2100]
        done = threading.Event()

        def serve() -> None:
            while not done.is_set():
                var.lookup(here[:2000])

        servers = [threading.Thread(target=serve) for _ in range(2)]
        for server in servers:
            server.start()
        for step in range(rounds):
            with pytest.raises(StoreFullError):
                var.apply_gradients(batch, gradients)
            var.apply_gradients(trained, gradients[: trained.size])
            es.persist([var], place / "checkpoints", global_step=step)
        done.set()
        for server in servers:
            server.join()
        assert (var.export()["keys"] == trained).all()


def test_checkpoints_end_after_batches_that_were_refused_beside_serving_look_ups(
    place: Path,
) -> None:
    run_function(
        "test_many_threads",
        f"checkpoints_after_refused_batches(test_many_threads.Path({str(place)!r}), 200)",
        timeout=100,
    )


def shorts_that_went_on_beside(long: Call, shorts: Sequence[Call]) -> set[int]:
    """Calls `long`, and meanwhile each of `shorts` again and again in a thread of its own. Returns
    the numbers of the short calls that began and ended in the second half of `long`: a call that
    waits for `long` is not among them."""
    is_over = threading.Event()
    times: list[tuple[int, float, float]] = []  # which, from, until

    def repeat(number: int) -> None:
        while not is_over.is_set():
            start = time.perf_counter()
            shorts[number]()
            times.append((number, start, time.perf_counter()))

    with ThreadPoolExecutor(len(shorts)) as threads:
        repeated = [threads.submit(repeat, number) for number in range(len(shorts))]
        try:
            begun = time.perf_counter()
            long()
            over = time.perf_counter()
        finally:
            is_over.set()
        for each in repeated:
            each.result()
    half = (begun + over) / 2
    return {number for number, start, end in times if start > half and end < over}


def assert_they_go_on_beside(long: Call, shorts: Sequence[Call]) -> None:
    waits = set(range(len(shorts)))
    for _ in range(20):  # a thread of a busy computer may get no processor in time
        waits -= shorts_that_went_on_beside(long, shorts)
        if not waits:
            return
    raise AssertionError(f"these of the short calls wait until the long one is over: {waits}")


def test_serving_look_ups_go_on_while_a_save_writes(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with kept_variable(tmp_path / "rows", False, first_tier_rows=50_000) as var:
        ids = np.arange(400_000)
        var.apply_gradients(ids, gradients_of_ones(ids))
        var.drain()

        def server(seed: int) -> Call:
            random = np.random.default_rng(seed)
            return lambda: var.lookup(random.integers(0, ids.size, 4000))

        assert_they_go_on_beside(
            lambda: es.save(tmp_path / "save", [var], 1), [server(seed) for seed in range(3)]
        )


def test_applies_to_a_nearly_full_table_go_side_by_side() -> None:
    ids = np.arange(300_000)
    rows = ids.size + 50  # room for fewer rows than either batch has ids
    storage = es.StorageOption(es.StorageType.DRAM, None, [rows * 512])
    with variable_with_options("var", 64, storage, optimizer=es.optimizers.Adagrad(0.1)) as var:
        grads = np.ones((ids.size, 64), np.float32)
        for part in np.array_split(ids, 10):
            var.apply_gradients(part, grads[: part.size])
        few = ids[::3000]
        applied = {"large": 0, "small": 0}

        def apply(size: str, some: NDArray[np.int64]) -> None:
            var.apply_gradients(some, grads[: some.size])
            applied[size] += 1

        assert_they_go_on_beside(lambda: apply("large", ids), [lambda: apply("small", few)])
        assert (var.get_frequency(few) == 1 + sum(applied.values())).all()
        assert var.total_count()[0] == ids.size
