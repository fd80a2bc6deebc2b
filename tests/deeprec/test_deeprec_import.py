"""TensorFlow is for those who ask for it."""

from __future__ import annotations

import pytest
from interpreter import run_python


@pytest.mark.parametrize("how", ["import embstore.deeprec", "import embstore; embstore.deeprec"])
def test_without_tensorflow_the_error_says_how_to_get_it(how: str) -> None:
    result = run_python(f"import sys; sys.modules['tensorflow'] = None; {how}")
    assert "MissingLibraryError" in result.stderr
    assert "pip install 'embstore[deeprec]'" in result.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import embstore.deeprec, tensorflow.compat.v1 as tf; {use}",
        """
import os
import tensorflow.compat.v1 as tf  # which takes 7 s
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    import embstore.deeprec
else:
    import embstore
    embstore.deeprec
{use}
""",
    ],
    ids=["before", "after, in both ways"],
)
def test_programs_may_import_it_before_or_after_tensorflow(program: str) -> None:
    pytest.importorskip("tensorflow")
    result = run_python(program.format(use="tf.get_embedding_variable('var', 2)"))
    assert result.returncode == 0, result.stderr
