"""Fixtures for the tests of shards in other processes."""

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
        "--kills", type=int, metavar="N", help="number of kills in test_killed_jobs.py (default: 4)"
    )
    parser.addoption(
        "--kills-seed", type=int, metavar="N", help="seed of the kills and their moments"
    )


@pytest.fixture(scope="module")
def ray() -> Any:
    """The module ray from `ray_node`, for all tests of this folder: a start takes 4 s of CPU."""
    if not _found:
        _found.append(_running.enter_context(ray_node()))
    return _found[0]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[TablesBehindSockets]:
    """Tables of Keras models, with shards behind servers of this process."""
    import keras

    keras.utils.set_random_seed(5)
    tables = TablesBehindSockets(monkeypatch)
    yield tables
    tables.close()


@pytest.hookimpl(trylast=True)  # after the last fixture that uses it has ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _end_ray()


def pytest_sessionfinish() -> None:
    _end_ray()  # needed if the last test failed and the session ends there


def _end_ray() -> None:
    _found.clear()
    _running.close()
