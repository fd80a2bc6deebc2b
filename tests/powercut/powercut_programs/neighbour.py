"""Functions that another module of this package imports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path


def write(medium: Path) -> None:
    (medium / "state").write_text("by a neighbour")


def written_by(function: Callable[[Path], None]) -> Callable[[Path], None]:
    @functools.wraps(function)
    def call(medium: Path) -> None:
        function(medium)

    return call
