"""Fixtures of the tests of shards elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_node import ray_node


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, metavar="N", default=3, help="in the hunt of test_killed_jobs.py"
    )
    parser.addoption("--kills-seed", type=int, metavar="N", default=1, help="of what is killed")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """As `ray_node` has it, for all tests of a module."""
    with ray_node() as found:
        yield found
