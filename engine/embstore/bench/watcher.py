"""The interface by which a suite reports progress and first results."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    def begin(self, task: str) -> None: ...
    def advance(self) -> None: ...
    def show_result(self, result: str) -> None:
        """Shows a result of the tables in a line, as soon as it is measured."""
