"""The Python that has TensorFlow, in which the tests of some folders run a second time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["PYTHON", "assert_tests_pass", "run"]


def _python_with_tensorflow() -> str | None:
    """Returns this Python if it has TensorFlow, else that of the environment which `make check`
    makes beside it, or None."""
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    beside = Path(sys.prefix) / "tensorflow" / "bin" / "python"
    return str(beside) if beside.exists() else None


PYTHON = _python_with_tensorflow()


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    assert PYTHON is not None
    return subprocess.run(
        [PYTHON, *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_tests_pass(*tests: Path, but: str = "", **environment: str) -> None:
    """Asserts that the tests, but those marked long, sanitizer or `but`, pass in that Python."""
    chosen = "not long and not sanitizer" + (f" and not {but}" if but else "")
    result = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, *tests, **environment
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout, result.stdout[-2000:]
