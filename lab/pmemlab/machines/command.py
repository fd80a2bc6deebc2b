"""What a command must be, for machines of every kind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

__all__ = ["checked_argv", "checked_environment"]


def checked_argv(argv: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the program and its arguments as text; a path is given as its text.

    Raises TypeError or ValueError for what no machine can run, so that nothing of it is sent.
    """
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence):
        raise TypeError(
            f"argv must be a list of the program and its arguments, not {argv!r}; "
            'for a shell command: ["sh", "-c", ...]'
        )
    if not argv:
        raise ValueError("argv is empty; it must have the program, and then its arguments")
    return [_text(argument, f"argv[{i}]") for i, argument in enumerate(argv)]


def checked_environment(env: Mapping[str, str | os.PathLike[str]]) -> dict[str, str]:
    """Return environment variables as text. Raises as `checked_argv`."""
    if not isinstance(env, Mapping):
        raise TypeError(f"env must map names of variables to their values, not be {env!r}")
    checked = {}
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise (ValueError if isinstance(name, str) else TypeError)(
                f"env: {name!r} is no variable's name; it must be text without = and NUL"
            )
        checked[name] = _text(value, f"env[{name!r}]")
    return checked


def _text(value: object, where: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{where} must be text or a path, not {value!r}")
    if "\0" in text:
        raise ValueError(f"{where} must have no NUL in it: {text!r}")
    return text
