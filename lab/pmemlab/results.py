"""The console on which commands print their results."""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console

__all__ = ["results_console"]

_FILE_COLUMNS = 1000  # more than any table needs


def results_console() -> Console:
    """Returns a console on stdout. On a file or a pipe it is as wide as the printed text, so that
    nothing is cut, unless COLUMNS gives a width. A character that stdout's encoding lacks is
    printed as "?", unless PYTHONIOENCODING says otherwise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    has_width = console.is_terminal or os.environ.get("COLUMNS", "0") != "0"
    return console if has_width else Console(highlight=False, width=_FILE_COLUMNS)
