"""`pmemlab test`: the scenarios."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["test"]


def test(arguments: argparse.Namespace) -> int:
    """run the scenarios: pytest, with its arguments"""
    import pytest

    from pmemlab.machines.container.clone import find_clone

    root = find_clone().root
    settings = [f"--rootdir={root}", "-c", str(root / "pyproject.toml")]
    return int(pytest.main([*settings, *arguments.rest], [_ScenariosByDefault(root)]))


class _ScenariosByDefault:
    """A plugin of pytest's: without files or folders in its arguments, the scenarios are run.

    Pytest alone can tell these from the values of options, as in `-k lab`.
    """

    def __init__(self, root: Path) -> None:
        self._scenarios = str(root / "scenarios")

    def pytest_configure(self, config: pytest.Config) -> None:
        if config.args_source is not config.ArgsSource.ARGS:
            config.args = [self._scenarios]
