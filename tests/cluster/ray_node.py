"""Starts Ray for tests: small, and only on the loopback address."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from processes import assert_gone, descendants

from embstore.cluster.ray.cluster import start_on_loopback


@contextlib.contextmanager
def ray_node() -> Iterator[Any]:
    """Yields the module ray, connected to a cluster of one node with 1 GiB of PMem and a GPU."""
    found = pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets' paths must be short
    before = descendants(os.getpid())
    with mock.patch("ray._private.node.Node.start_log_monitor"):  # takes 0.5 s of CPU to start
        start_on_loopback(
            found,
            num_cpus=2,
            num_gpus=1,
            resources={"pmem": 1},
            object_store_memory=128 << 20,
            configure_logging=False,
            _temp_dir=folder,
        )
    try:
        yield found
    finally:
        started = descendants(os.getpid()) - before
        found.shutdown()
        assert_gone(started)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_taken(ray: Any, pmem_gib: float) -> None:
    """Waits until all tests together have reserved that much of the node's PMem. Ray returns a
    little later what an ended actor had.
    """
    deadline = time.monotonic() + 30
    while (taken := _taken(ray)) != pytest.approx(pmem_gib):
        assert time.monotonic() < deadline, f"{taken} GiB are taken, not {pmem_gib}"
        time.sleep(0.05)


def _taken(ray: Any) -> float:
    free = ray.available_resources().get("pmem", 0.0)
    return float(ray.cluster_resources()["pmem"] - free)
