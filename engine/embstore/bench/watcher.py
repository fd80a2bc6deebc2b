"""How a suite says how far it is, and what it has found."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    def begin(self, what: str) -> None: ...
    def advance(self) -> None: ...
    def found(self, result: str) -> None:
        """Shows a line of what will be in the tables, as soon as it is measured."""
