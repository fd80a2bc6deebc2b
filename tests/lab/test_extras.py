"""What is installed beside the project, which the Makefile asks for before there is anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pmemlab import extras

_PROJECT = {
    "project": {
        "dependencies": ["numpy>=1.26"],
        "optional-dependencies": {"lab": ["docker>=7", "rich>=13"], "other": ["torch"]},
    }
}


def test_an_extra_comes_with_what_the_project_itself_needs() -> None:
    assert extras.requirements(_PROJECT, ["lab"]) == ["numpy>=1.26", "docker>=7", "rich>=13"]


def test_an_extra_that_isnt_there_is_an_error() -> None:
    with pytest.raises(KeyError, match="labb"):
        extras.requirements(_PROJECT, ["labb"])


def test_run_by_its_path_it_prints_them_for_pip(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\ndependencies = ["a>=1"]\noptional-dependencies = {b = ["c; d<\'2\'"]}\n'
    )
    done = subprocess.run(
        [sys.executable, "-I", str(extras.__file__), str(file), "b"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "a>=1\nc; d<'2'\n"
