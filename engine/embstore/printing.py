"""Prints the commands' tables of results. Needs rich."""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console
from rich.table import Table

__all__ = ["print_table"]

_FILE_COLUMNS = 1000  # more than any table needs


def print_table(table: Table) -> None:
    """Prints a table to stdout without cutting anything. In a file or a pipe the table is as wide
    as it needs, unless COLUMNS sets the width; if there is less room, long words are folded.
    A letter that stdout's encoding lacks is printed as "?", unless PYTHONIOENCODING says otherwise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    for column in table.columns:
        column.overflow = "fold"
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=None if has_width else _FILE_COLUMNS).print(table)
