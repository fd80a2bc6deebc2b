"""What tests start servers by is used here, too; and these tests' place among scenarios."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))


@pytest.hookimpl(trylast=True)  # once scenarios are in order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind the first scenario, by which machines have started: these tests wait for half of their
    time, in which machines train; at the end they would wait alone."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    others = [item for item in items if item not in here]
    items[:] = others[:1] + here + others[1:]
