"""Makes tests independent of this computer's speed and of its user's settings, and orders them."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# `make` sets these if a newer QEMU and kernel are unpacked; the tests bring their own QEMUs.
for name in ("PMEMLAB_QEMU", "PMEMLAB_KERNEL"):
    os.environ.pop(name, None)

# For each further processor, NumPy's BLAS starts a thread that spins while NumPy is imported. The
# tests import NumPy in a thousand processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell makes its background commands ignore Ctrl-C; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest. They start first: the last of them would otherwise end alone.
LONGEST = {
    "test_jobs.py",
    "test_native.py",
    "test_log.py",
    "test_keras_on_tensorflow.py",
    "test_deeprec_on_tensorflow.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


# Files whose tests run on a Ray node, which takes 4 s of CPU to start.
ON_RAY = {
    "test_jobs.py",
    "test_keras_on_shards.py",
    "test_lost_shards.py",
    "test_servers_of_many_tables.py",
    "test_sharded_variable.py",
    "test_shards_on_gpus.py",
    "test_torch_on_shards.py",
}


class _FilesAlone(LoadFileScheduling):  # type: ignore[misc]
    """A scheduler that gives each process one file at a time, and all Ray files to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        name = Path(file).name
        # The long tests of this file take as long as all others.
        is_apart = name == "test_jobs.py" and "not long" not in self.config.getoption("markexpr")
        return "on a Ray node" if name in ON_RAY and not is_apart else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _FilesAlone(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without garbage collection: imported modules live on, and searching them for
    garbage takes a quarter of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
