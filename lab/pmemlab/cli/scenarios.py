"""`pmemlab test`: the scenarios."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["test"]

# Of this very command, which pytest would warn of in each run.
_IMPORTED_ALREADY = (
    "-W",
    "ignore:Module already imported so cannot be rewritten; pmemlab"
    ":pytest.PytestAssertRewriteWarning",
)


def test(arguments: argparse.Namespace) -> int:
    """run the scenarios: pytest, with its arguments"""
    import pytest

    from pmemlab.errors import MissingRequirementError
    from pmemlab.machines.container.clone import find_clone

    given = [*_IMPORTED_ALREADY, *arguments.rest]
    try:
        root = find_clone().root
    except MissingRequirementError as error:
        return int(pytest.main([*_folders_of(given), *given], [_UsersOwn(str(error))]))
    settings = [f"--rootdir={root}", "-c", str(root / "pyproject.toml")]
    return int(pytest.main([*settings, *given], [_ScenariosByDefault(root)]))


def _folders_of(given: list[str]) -> list[str]:
    """The option by which files of scenarios that are named are known as such, if there are any."""
    from pmemlab.scenarios.options import FOLDERS
    from pmemlab.schema import YAML_SUFFIXES

    folders = {
        str(path.resolve().parent)
        for path in map(Path, given)
        if path.suffix in YAML_SUFFIXES and path.is_file()
    }
    return ["-o", f"{FOLDERS}={shlex.join(sorted(folders))}"] if folders else []


class _UsersOwn:
    """A plugin of pytest's, outside of a clone: without files or folders in its arguments, those
    that the user's own project names are run, or it says why there are none.
    """

    def __init__(self, why_no_clone: str) -> None:
        self._why_no_clone = why_no_clone

    def pytest_configure(self, config: pytest.Config) -> None:
        import pytest

        from pmemlab.scenarios.options import FOLDERS

        if config.args_source is not config.ArgsSource.ARGS and not config.getini(FOLDERS):
            raise pytest.UsageError(
                f"{self._why_no_clone}, name a scenario's file, or list folders of scenarios as "
                f"`{FOLDERS}` in your project's pyproject.toml"
            )


class _ScenariosByDefault:
    """A plugin of pytest's: without files or folders in its arguments, the clone's scenarios are
    run.

    Pytest alone can tell these from the values of options, as in `-k lab`.
    """

    def __init__(self, root: Path) -> None:
        self._scenarios = str(root / "scenarios")

    def pytest_configure(self, config: pytest.Config) -> None:
        if config.args_source is not config.ArgsSource.ARGS:
            config.args = [self._scenarios]
