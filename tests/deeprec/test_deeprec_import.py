"""TensorFlow is for those who ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )


@pytest.mark.parametrize("how", ["import embstore.deeprec", "import embstore; embstore.deeprec"])
def test_without_tensorflow_the_error_says_how_to_get_it(how: str) -> None:
    result = run(f"import sys; sys.modules['tensorflow'] = None; {how}")
    assert "MissingLibraryError" in result.stderr
    assert "pip install 'embstore[deeprec]'" in result.stderr


def test_programs_may_import_it_before_or_after_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    used = "tf.get_embedding_variable('var', 2)"
    for imports in (
        "import embstore.deeprec, tensorflow.compat.v1 as tf",
        "import tensorflow.compat.v1 as tf, embstore.deeprec",
        "import embstore, tensorflow; embstore.deeprec; tf = tensorflow.compat.v1",
    ):
        result = run(f"{imports}\n{used}")
        assert result.returncode == 0, result.stderr
