"""The console for commands' messages: only results go to stdout."""

from __future__ import annotations

from rich.console import Console

__all__ = ["messages"]

messages = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
