"""The tests of this folder once more, in the environment that has TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(sys.prefix) / "tensorflow" / "bin" / "python"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is not None, reason="they run in this environment"
)
@pytest.mark.skipif(not PYTHON.exists(), reason="TensorFlow isn't installed: make tensorflow")
def test_deeprecs_names_pass_their_tests_on_tensorflow() -> None:
    result = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).parent],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout, result.stdout[-2000:]
