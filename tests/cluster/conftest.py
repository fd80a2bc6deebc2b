"""Fixtures of the tests of shards elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from ray_node import ray_node
from tables_behind_sockets import TablesBehindSockets

_running = contextlib.ExitStack()
_found: list[Any] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, metavar="N", help="of the hunt in test_killed_jobs.py; 4 by default"
    )
    parser.addoption(
        "--kills-seed", type=int, metavar="N", help="of what is killed there, and when"
    )


@pytest.fixture(scope="module")
def ray() -> Any:
    """As `ray_node` has it, for all tests of this folder: to start it takes 4 s of CPU."""
    if not _found:
        _found.append(_running.enter_context(ray_node()))
    return _found[0]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[TablesBehindSockets]:
    """Tables whose shards are behind servers of this process, for Keras's models."""
    import keras

    keras.utils.set_random_seed(5)
    tables = TablesBehindSockets(monkeypatch)
    yield tables
    tables.close()


@pytest.hookimpl(trylast=True)  # once no fixture uses it any more
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _end_ray()


def pytest_sessionfinish() -> None:
    _end_ray()  # where a test was the last since it failed


def _end_ray() -> None:
    _found.clear()
    _running.close()
