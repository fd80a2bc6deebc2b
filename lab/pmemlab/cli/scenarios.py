"""`pmemlab test`: runs the scenarios."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["test"]

# pytest would warn of this module, which this command has imported, in each run.
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

    pytest_arguments = [*_IMPORTED_ALREADY, *arguments.rest]
    try:
        root = find_clone().root
    except MissingRequirementError as error:
        return int(
            pytest.main(
                [*_collection_options(pytest_arguments), *pytest_arguments],
                [_ProjectScenarios(str(error))],
            )
        )
    settings = [f"--rootdir={root}", "-c", str(root / "pyproject.toml")]
    return int(pytest.main([*settings, *pytest_arguments], [_CloneScenarios(root)]))


def _collection_options(arguments: list[str]) -> list[str]:
    """Returns the option that lets pytest collect the named scenario files, if any were named."""
    from pmemlab.scenarios.options import FOLDERS
    from pmemlab.schema import YAML_SUFFIXES

    folders = {
        str(path.resolve().parent)
        for path in map(Path, arguments)
        if path.suffix in YAML_SUFFIXES and path.is_file()
    }
    return ["-o", f"{FOLDERS}={shlex.join(sorted(folders))}"] if folders else []


class _ProjectScenarios:
    """A pytest plugin for use outside a clone. Without files or folders in the arguments, pytest
    runs the folders that the user's project names, or the plugin says why there are none.
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


class _CloneScenarios:
    """A pytest plugin that runs the clone's scenarios if the arguments name no file or folder.

    Only pytest can tell files and folders from values of options, as in `-k lab`.
    """

    def __init__(self, root: Path) -> None:
        self._scenarios = str(root / "scenarios")

    def pytest_configure(self, config: pytest.Config) -> None:
        if config.args_source is not config.ArgsSource.ARGS:
            config.args = [self._scenarios]
