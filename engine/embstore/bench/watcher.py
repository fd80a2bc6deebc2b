"""How a suite says how far it is."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    def begin(self, what: str) -> None: ...
    def advance(self) -> None: ...
