"""What goes wrong with an experiment itself; never the verdict of one."""

from __future__ import annotations

__all__ = ["PowercutError"]


class PowercutError(Exception):
    """A program, an option or this computer can't be used; the message says what to do."""
