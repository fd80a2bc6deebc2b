"""Fixtures of the tests of shards elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_node import ray_node


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, metavar="N", help="of the hunt in test_killed_jobs.py; 4 by default"
    )
    parser.addoption(
        "--kills-seed", type=int, metavar="N", help="of what is killed there, and when"
    )


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """As `ray_node` has it, for all tests of a module."""
    with ray_node() as found:
        yield found
