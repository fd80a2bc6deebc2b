"""Splits a command into words as a shell does, and quotes words, leaving the braces of {medium}."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from powercut.errors import PowercutError

__all__ = ["join", "quote", "words"]

_PLAIN = re.compile(r"[\w@%+=:,./{}-]+", re.ASCII)


def quote(word: str) -> str:
    plain = _PLAIN.fullmatch(word) and not re.search(r"\{[^}]*(,|\.\.)", word)
    return word if plain else shlex.quote(word)


def words(name: str, command: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns a command's words. name: the option, for the `PowercutError` about its quotes."""
    try:
        return tuple(shlex.split(command) if isinstance(command, str) else command or ())
    except ValueError as error:
        raise PowercutError(f"{name} {command}: {error}") from error


def join(words: Sequence[str]) -> str:
    return " ".join(map(quote, words))
