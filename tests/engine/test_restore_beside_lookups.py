"""A table may be restored while other threads look up rows in it."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from interpreter import run_python

# glibc overwrites freed memory, so that code which still uses it fails.
FREED_IS_LOST = {"MALLOC_PERTURB_": "165", "MALLOC_MMAP_THRESHOLD_": "65536"}

# Runs in a process of its own, because a failure ends the process.
PROGRAM = textwrap.dedent(
    """
    import sys, threading
    import numpy as np
    import embstore as es

    path, kind = sys.argv[1:]
    filters = {
        "CBFFilter": es.CBFFilter(
            filter_freq=3, max_element_size=20_000, false_positive_probability=0.01
        ),
        "CounterFilter": es.CounterFilter(filter_freq=3),
    }
    variable = es.get_embedding_variable(
        "var",
        embedding_dim=4,
        initializer=es.initializers.Ones(),
        optimizer=es.optimizers.SGD(0.1),
        ev_option=es.EmbeddingVariableOption(filter_option=filters[kind]),
    )
    waiting, admitted, unknown = np.arange(500), np.arange(500, 1000), np.arange(1000, 20_000)
    variable.apply_gradients(waiting, np.zeros((500, 4), np.float32))
    variable.apply_gradients(np.tile(admitted, 3), np.zeros((1500, 4), np.float32))
    es.save(path, [variable], 0)

    done = threading.Event()
    looked_up = []

    def look_up():
        ids = np.concatenate([unknown, waiting])
        batches = 0
        while not done.is_set():
            assert (variable.lookup(ids) == 0.0).all()  # none of these has a row, ever
            batches += 1
        looked_up.append(batches)

    threads = [threading.Thread(target=look_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        es.restore(path, [variable])
    done.set()
    for thread in threads:
        thread.join()
    assert len(looked_up) == 3 and all(looked_up), looked_up
    assert (variable.get_frequency(waiting) == 1).all()
    assert (variable.lookup(admitted) == 1.0).all()
    assert variable.total_count() == (500, 4)
    print("held")
    """
)


@pytest.mark.parametrize("kind", ["CBFFilter", "CounterFilter"])
def test_lookups_go_on_while_waiting_keys_are_restored(tmp_path: Path, kind: str) -> None:
    environment = {**os.environ, **FREED_IS_LOST}
    done = run_python(PROGRAM, tmp_path / "save", kind, environment=environment)
    assert done.returncode == 0, done.stderr[-2000:] or f"ended by signal {-done.returncode}"
    assert done.stdout == "held\n"
