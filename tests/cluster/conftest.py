"""Fixtures of the tests of shards elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_node import ray_node


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """As `ray_node` has it, for all tests of a module."""
    with ray_node() as found:
        yield found
