"""Variables that are dropped, or are open when the program ends."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from programs import kept_variable, run_program
from reporting_lock import ReportingLock

import embstore as es

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def _quick_to_collect() -> None:
    """Makes collections look at new objects only: one of all objects that tests have made holds the
    GIL for long."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("_quick_to_collect")
def test_other_threads_run_while_a_dropped_variable_writes_its_rows(tmp_path: Path) -> None:
    for number in range(10):  # on a busy computer a thread may get no processor in time
        longest, took = longest_gap_while_dropped(tmp_path / str(number))
        if longest < took / 2:
            return
    raise AssertionError(f"stood still for {longest:.3f} of {took:.3f} s")


def longest_gap_while_dropped(directory: Path) -> tuple[float, float]:
    """Returns for how long another thread stood still at most while a variable was dropped, and how
    long the drop took, in seconds."""
    var = kept_variable(directory)
    ids = np.arange(400_000)
    var.apply_gradients(ids, np.ones((ids.size, 16), np.float32))
    gaps = []
    dropped = threading.Event()

    def count() -> None:
        last = time.perf_counter()
        while not dropped.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    counter = threading.Thread(target=count)
    counter.start()
    start = time.perf_counter()
    del var
    gc.collect()
    took = time.perf_counter() - start
    dropped.set()
    counter.join()
    with kept_variable(directory) as again:
        assert again.total_count()[0] == ids.size
    return max(gaps), took


TRAIN_AND_END = """
import sys
from pathlib import Path
import numpy as np
from programs import kept_variable
var = kept_variable(Path(sys.argv[1]), keep_files=sys.argv[2] == "kept")
var.apply_gradients(np.arange(500), np.ones((500, 16), np.float32))
"""

# Like an object that native code still holds.
NEVER_DROPPED = "import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object(var))"


@pytest.mark.parametrize(
    "ending", ["", "cycle = [var]; cycle.append(cycle)", "raise SystemExit(0)", NEVER_DROPPED]
)
def test_rows_of_a_variable_that_is_open_when_the_program_ends_are_kept(
    tmp_path: Path, ending: str
) -> None:
    ended = run_program(TRAIN_AND_END + ending, tmp_path, "kept")
    assert ended.returncode == 0, ended.stderr
    with kept_variable(tmp_path) as again:
        assert again.total_count()[0] == 500
        assert (again.get_frequency(np.arange(500)) == 1).all()


@pytest.mark.parametrize("ending", ["", NEVER_DROPPED])
def test_files_of_a_variable_that_is_open_when_the_program_ends_are_removed(
    tmp_path: Path, ending: str
) -> None:
    ended = run_program(TRAIN_AND_END + ending, tmp_path, "not kept")
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_close_at_the_end_of_the_program_is_printed(tmp_path: Path) -> None:
    ended = run_program(
        TRAIN_AND_END
        + "import resource, signal\n"
        + "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        + "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        + NEVER_DROPPED,
        tmp_path,
        "kept",
    )
    assert "var wasn't closed" in ended.stderr
    assert "StorageError" in ended.stderr
    assert str(tmp_path) in ended.stderr


DAEMONS = """
import threading, time
import numpy as np
import embstore as es

var = es.get_embedding_variable("var", 16, optimizer=es.optimizers.SGD(1.0))
ids, grads = np.arange(100), np.ones((100, 16), np.float32)

def call_for_ever(call):
    while True:
        try:
            call()
        except es.errors.ClosedError:
            pass

def make_one():
    es.get_embedding_variable("dropped", 16, optimizer=es.optimizers.SGD(1.0))

for call in (lambda: var.lookup(ids), lambda: var.apply_gradients(ids, grads), make_one):
    threading.Thread(target=call_for_ever, args=(call,), daemon=True).start()
time.sleep(0.2)
"""


def test_daemon_threads_that_are_in_the_engine_let_the_program_end() -> None:
    for _ in range(5):
        ended = run_program(DAEMONS)
        assert ended.returncode == 0, ended.stderr or f"ended by signal {-ended.returncode}"


def test_a_close_beside_another_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    var = kept_variable(tmp_path)
    var.apply_gradients([1, 2], np.ones((2, 16), np.float32))
    lock = ReportingLock(threading.RLock())
    monkeypatch.setattr(var, "_closing", lock)
    begun: list[str] = []
    with ThreadPoolExecutor(1) as thread:

        def closed_beside() -> None:
            begun.append("a close")
            if len(begun) == 1:
                other = thread.submit(var.close)
                lock.wait_for(other)
                assert not other.done()

        var.internals.before_close.append(closed_beside)
        var.close()
    assert len(begun) == 1
    with kept_variable(tmp_path) as again:
        assert again.total_count()[0] == 2


def test_the_hook_that_closes_variables_at_the_end_keeps_none_alive() -> None:
    var = es.get_embedding_variable("short", 3)
    alive = weakref.ref(var)
    del var
    gc.collect()
    assert alive() is None
