"""Keras is imported only by programs that use it."""

from __future__ import annotations

import pytest
from interpreter import run_python

pytestmark = pytest.mark.any_backend


def test_embstore_alone_imports_neither_keras_nor_torch() -> None:
    program = "import sys, embstore; assert not {'keras', 'torch', 'tensorflow'} & set(sys.modules)"
    result = run_python(program)
    assert result.returncode == 0, result.stderr


def test_without_keras_backend_the_error_says_so() -> None:
    program = (
        "import os, sys; os.environ['KERAS_BACKEND'] = 'tensorflow'; "
        "sys.modules['tensorflow'] = None; import embstore; embstore.keras"
    )
    result = run_python(program)
    assert "Keras needs tensorflow, which isn't installed" in result.stderr
    assert "KERAS_BACKEND=torch" in result.stderr


def test_without_keras_the_error_says_how_to_get_it() -> None:
    result = run_python("import sys; sys.modules['keras'] = None; import embstore; embstore.keras")
    assert "MissingLibraryError" in result.stderr
    assert "pip install embstore[keras]" in result.stderr


@pytest.mark.long
def test_a_backend_without_look_ups_is_refused() -> None:
    pytest.importorskip("keras")
    program = """
import keras
keras.backend.backend = lambda: "jax"
import embstore
embstore.keras.Embedding(4, 2)
"""
    result = run_python(program)
    assert "UnsupportedError" in result.stderr
    assert "KERAS_BACKEND=torch" in result.stderr
