"""Reading facts, some of which are unreadable and get a reason instead of a value."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "Unreadable",
    "read_kernel_text",
    "run_json_program",
    "run_program",
    "split_unreadable",
    "try_read",
]

_LIMIT_S = 60.0


class Unreadable(NamedTuple):  # importing dataclasses would cost a guest 0.5 s
    """Stands for the value of a fact that could not be read. why: the reason, for people."""

    why: str


def try_read(read: Callable[[], object]) -> object:
    """Returns the result of `read`, or `Unreadable` with the text of its error."""
    try:
        return read()
    except LookupError as error:  # its text is a bare key
        return Unreadable(f"there is no {error.args[0] if error.args else error}")
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
        return Unreadable(str(error) or type(error).__name__)


def split_unreadable(facts: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """Returns the readable facts, and dotted name -> reason for the unreadable ones.

    An item of a list keeps its place: it loses the fact, or becomes an empty mapping.
    """
    reasons: dict[str, str] = {}

    def strip(value: object, name: str) -> object:
        if isinstance(value, Unreadable):
            reasons[name] = value.why
            return {}
        if isinstance(value, Mapping):
            stripped = {key: strip(item, f"{name}.{key}") for key, item in value.items()}
            return {key: item for key, item in stripped.items() if f"{name}.{key}" not in reasons}
        if isinstance(value, list):
            return [strip(item, f"{name}.{index}") for index, item in enumerate(value)]
        return value

    stripped = {key: strip(value, key) for key, value in facts.items()}
    return {key: value for key, value in stripped.items() if key not in reasons}, reasons


def read_kernel_text(path: Path) -> str:
    """Returns a small file of the kernel's, without the end of its line. Raises OSError."""
    return path.read_text().strip()


def run_program(argv: Sequence[str]) -> str:
    """Returns a program's output. Raises OSError with the program's message if it fails."""
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        message = (done.stderr or done.stdout).strip() or "it said nothing"
        raise OSError(f"{' '.join(argv)} ended with status {done.returncode}: {message}")
    return done.stdout


def run_json_program(argv: Sequence[str]) -> Any:
    """Returns the JSON document that a program prints; an empty list if it prints nothing.

    Raises as `run_program` does, and ValueError if the output is not JSON.
    """
    output = run_program(argv)
    try:
        return json.loads(output) if output.strip() else []
    except ValueError as error:
        raise ValueError(f"{' '.join(argv)} printed no JSON: {error}") from error
