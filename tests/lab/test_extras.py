"""extras.py, which lists the packages that the Makefile installs for the projects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXTRAS = Path(__file__).parents[2] / "lab/tools/extras.py"


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Two folders and the top folder, each with a pyproject.toml."""
    texts = {
        "engine": """
            [build-system]
            requires = ["builder>=2"]
            [project]
            dependencies = ["numpy>=1.26"]
            optional-dependencies = {torch = ["torch"], keras = ["keras; python_version<'4'"]}
            [tool.scikit-build]
            cmake.version = ">=3.25"
        """,
        "lab": """
            [build-system]
            requires = ["hatcher"]
            [project]
            dependencies = ["rich"]
        """,
        ".": """
            [dependency-groups]
            dev = ["ruff"]
        """,
    }
    for folder, text in texts.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "pyproject.toml").write_text(text)
    return tmp_path


def _extras(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(EXTRAS), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_extras_and_groups_are_listed_with_each_project_s_own_dependencies(projects: Path) -> None:
    done = _extras(projects, "engine[torch,keras]", "lab", ".[dev]")
    assert done.stdout == "numpy>=1.26\ntorch\nkeras; python_version<'4'\nrich\nruff\n"


def test_a_build_needs_the_build_systems_and_the_tools_they_would_fetch(projects: Path) -> None:
    done = _extras(projects, "--build", "engine", "lab")
    assert done.stdout == "builder>=2\ncmake>=3.25\nninja\nhatcher\n"


def test_an_unknown_extra_or_folder_is_an_error_that_names_it(projects: Path) -> None:
    for argument, told in [("engine[labb]", "labb"), ("none", "none"), ("engine[torch", "must be")]:
        done = _extras(projects, argument)
        assert done.returncode != 0
        assert told in done.stderr
        assert "Traceback" not in done.stderr
