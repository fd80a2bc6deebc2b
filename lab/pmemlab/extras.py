"""What a project and its extras depend on.

    python lab/pmemlab/extras.py pyproject.toml EXTRA...

prints them, a line each. The Makefile runs this file by its path before anything is installed: the
standard library and pip alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # and Python has none
    from pip._vendor import tomli as tomllib

__all__ = ["requirements"]


def requirements(pyproject: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """pyproject: what the file says. Raises KeyError for an extra that it doesn't have."""
    project = pyproject["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    _, file, *wanted = sys.argv
    print(*requirements(tomllib.loads(Path(file).read_text(encoding="utf-8")), wanted), sep="\n")
