"""Many threads at once: none waits for what it has no need of, and none waits for ever."""

from __future__ import annotations

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from programs import kept_variable, ones, run_function

import embstore as es

pytestmark = pytest.mark.timeout(200)


def many_threads_and_a_save(threads: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "rows").mkdir()
        var = kept_variable(Path(directory) / "rows", False, first_tier_rows=2000)
        start = threading.Barrier(threads)

        def work(number: int) -> None:
            random = np.random.default_rng(number)
            start.wait()
            for step in range(12):
                ids = random.integers(0, 5000, 400)
                if number % 2:
                    var.apply_gradients(ids, ones(ids))
                else:
                    assert np.isfinite(var.lookup(ids, train=bool(step % 2))).all()
                if number == 0 and step % 4 == 0:
                    es.save(Path(directory) / "save", [var], step)

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, number) for number in range(threads)]:
                done.result()
        applies = 12 * (threads // 2)
        assert var.get_frequency(np.arange(5000)).sum() == applies * 400
        assert var.get_version(np.arange(5000)).max() == applies - 1
        var.close()


def test_160_threads_that_look_up_and_apply_beside_saves_all_end() -> None:
    run_function("test_many_threads", "many_threads_and_a_save(160)", timeout=60)


def test_serving_look_ups_go_on_while_a_save_writes(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with kept_variable(tmp_path / "rows", False, first_tier_rows=50_000) as var:
        ids = np.arange(400_000)
        var.apply_gradients(ids, ones(ids))
        var.drain()
        saved = threading.Event()
        longest = 0.0
        looked_up = 0

        def serve() -> None:
            nonlocal longest, looked_up
            random = np.random.default_rng(3)
            while not saved.is_set():
                some = random.integers(0, ids.size, 2000)
                start = time.perf_counter()
                var.lookup(some)
                longest = max(longest, time.perf_counter() - start)
                looked_up += 1

        server = threading.Thread(target=serve)
        server.start()
        start = time.perf_counter()
        es.save(tmp_path / "save", [var], 1)
        took = time.perf_counter() - start
        saved.set()
        server.join()
        assert took > 0.2, "too short to tell anything"
        assert looked_up > 10
        assert longest < took / 3, f"one waited {longest:.2f} s of the save's {took:.2f} s"


def test_an_apply_to_a_nearly_full_table_does_not_wait_for_another() -> None:
    ids = np.arange(300_000)
    rows = ids.size + 50  # room for fewer rows than either batch has ids
    storage = es.StorageOption(es.StorageType.DRAM, None, [rows * 128])
    with es.get_embedding_variable(
        "var",
        16,
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
    ) as var:
        for part in np.array_split(ids, 10):
            var.apply_gradients(part, ones(part))
        grads = ones(ids)
        started, done = threading.Event(), threading.Event()

        def large() -> None:
            started.wait()
            for _ in range(5):
                var.apply_gradients(ids, grads)
            done.set()

        thread = threading.Thread(target=large)
        thread.start()
        few = ids[::3000]
        small = 0
        started.set()
        while not done.is_set():
            var.apply_gradients(few, ones(few))
            small += 1
        thread.join()
        # One at a time they would take turns.
        assert small > 20, f"{small} small applies beside 5 large ones"
        assert var.total_count()[0] == ids.size
        assert (var.get_frequency(few) == 6 + small).all()
