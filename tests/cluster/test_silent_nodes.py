"""Before shards are placed, every node that Ray considers alive has to answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from embstore.cluster.ray import cluster

LOOPBACK = "127.0.0.1"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that accepts connections and sends nothing, like an unplugged node."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


class Ray:
    """Stands in for Ray, which notices after `noticed_after` questions that the node is dead."""

    def __init__(self, port: int, noticed_after: int) -> None:
        self._port = port
        self._left = noticed_after

    def nodes(self) -> list[dict[str, Any]]:
        self._left -= 1
        node = {"NodeManagerAddress": LOOPBACK, "NodeManagerPort": self._port}
        return [{**node, "Alive": self._left >= 0}]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_ANSWERS_WITHIN_S", 0.1)
    monkeypatch.setattr(cluster, "_ASK_INTERVAL_S", 0.01)


def test_a_silent_node_is_waited_for_until_ray_notices(silent_port: int) -> None:
    began = time.monotonic()
    cluster.wait_for_answers(Ray(silent_port, noticed_after=3), within_s=60)
    assert 0.3 <= time.monotonic() - began < 30


def test_a_node_that_stays_silent_is_not_waited_for_forever(silent_port: int) -> None:
    began = time.monotonic()
    cluster.wait_for_answers(Ray(silent_port, noticed_after=10**6), within_s=0.5)
    assert 0.5 <= time.monotonic() - began < 30
