"""Gives these tests the helpers that start servers, and their place in the order of scenarios."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))


@pytest.hookimpl(trylast=True)  # after scenarios have been sorted
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves these tests behind the first scenario, which has started machines. They spend half of
    their time waiting, in which machines train; at the end of the run they would wait alone."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    others = [item for item in items if item not in here]
    items[:] = others[:1] + here + others[1:]
