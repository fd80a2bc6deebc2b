"""Prints the dependencies of projects, of their extras and of their builds.

    python lab/tools/extras.py [--build] FOLDER[EXTRA,...] ...

prints the requirements of the pyproject.toml in each folder, one per line. An extra may also be one
of the project's dependency groups. --build: print the build requirements instead. The Makefile runs
this file by its path before anything is installed, so it uses only the standard library and pip.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python before 3.11 has no tomllib
    from pip._vendor import tomli as tomllib

__all__ = ["build_requirements", "main", "requirements"]


def requirements(pyproject: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """Returns requirements. pyproject: the file's content. Raises KeyError for an unknown extra."""
    project = pyproject.get("project", {})
    groups = pyproject.get("dependency-groups", {})
    found = list(project.get("dependencies", ()))
    for extra in extras:
        found += project.get("optional-dependencies", groups).get(extra) or groups[extra]
    return found


def build_requirements(pyproject: Mapping[str, Any]) -> list[str]:
    """Returns build requirements, including tools that pip would fetch by itself.

    pyproject: the file's content.
    """
    found = list(pyproject["build-system"]["requires"])
    cmake = pyproject.get("tool", {}).get("scikit-build", {}).get("cmake", {})
    return [*found, f"cmake{cmake['version']}", "ninja"] if cmake else found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("projects", nargs="+", metavar="FOLDER[EXTRA,...]")
    options = parser.parse_args(arguments)
    for project in options.projects:
        found = re.fullmatch(r"([^\[]+)(?:\[([^\]]*)\])?", project)
        if found is None:
            parser.error(f"{project}: must be FOLDER or FOLDER[EXTRA,...]")
        file = Path(found[1]) / "pyproject.toml"
        try:
            pyproject = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            sys.exit(f"{file}: {error}")
        extras = found[2].split(",") if found[2] else []
        if options.build:
            packages = build_requirements(pyproject)
        else:
            try:
                packages = requirements(pyproject, extras)
            except KeyError as error:
                sys.exit(f"{file}: has neither an extra nor a dependency group {error}")
        print(*packages, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
