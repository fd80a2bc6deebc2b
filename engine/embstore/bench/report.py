"""The result of a suite: tables for the terminal, and the same figures for a file."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Report:
    tables: list[Table]
    document: dict[str, object]  # without the suite's name and options
