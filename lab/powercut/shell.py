"""Quotes words for a shell, leaving the braces of {medium} as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

__all__ = ["join", "quote"]

_PLAIN = re.compile(r"[\w@%+=:,./{}-]+", re.ASCII)


def quote(word: str) -> str:
    plain = _PLAIN.fullmatch(word) and not re.search(r"\{[^}]*(,|\.\.)", word)
    return word if plain else shlex.quote(word)


def join(words: Sequence[str]) -> str:
    return " ".join(map(quote, words))
