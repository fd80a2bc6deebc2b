"""Helpers that run workloads as commands."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

Main = Callable[[Sequence[str]], int]


def document_of(main: Main, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Runs a workload with --json, and returns what it prints."""
    status = main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


def refusal_of(main: Main, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs a command that refuses its arguments, and returns its error message."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def skip_without(library: str, package: str) -> None:
    try:
        ctypes.CDLL(library)
    except OSError:
        pytest.skip(f"needs {library}; apt-get install {package}")
