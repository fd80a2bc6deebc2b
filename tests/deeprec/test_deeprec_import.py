"""TensorFlow is imported only by programs that use it."""

from __future__ import annotations

import before_tensorflow
import pytest
from interpreter import run_python
from program_with_tensorflow import ProgramWithTensorFlow


@pytest.mark.parametrize("how", ["import embstore.deeprec", "import embstore; embstore.deeprec"])
def test_without_tensorflow_the_error_says_how_to_get_it(how: str) -> None:
    result = run_python(f"import sys; sys.modules['tensorflow'] = None; {how}")
    assert "MissingLibraryError" in result.stderr
    assert "pip install 'embstore[deeprec]'" in result.stderr


def test_programs_may_import_embstore_deeprec_before_tensorflow() -> None:
    """This process has imported it first, unless something else had imported TensorFlow."""
    tf = pytest.importorskip("tensorflow.compat.v1")
    if before_tensorflow.IMPORTED:
        tf.get_embedding_variable("var", 2)
        return
    result = run_python(
        "import embstore.deeprec, tensorflow.compat.v1 as tf; tf.get_embedding_variable('var', 2)"
    )
    assert result.returncode == 0, result.stderr


def test_programs_may_import_embstore_deeprec_after_tensorflow_in_both_ways(
    program_with_tensorflow: ProgramWithTensorFlow,
) -> None:
    assert program_with_tensorflow.imported == ["as an attribute", "by its name"]
