"""Errors of an experiment itself, which are never its verdict."""

from __future__ import annotations

__all__ = ["PowercutError"]


class PowercutError(Exception):
    """A program, an option or this computer can't be used; the message says what to do."""
