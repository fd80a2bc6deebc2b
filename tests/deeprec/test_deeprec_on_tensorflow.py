"""Runs the tests of this folder again in the environment that has TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorflow_environment import PYTHON, assert_tests_pass


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.executable == PYTHON, reason="they run in this environment")
@pytest.mark.skipif(PYTHON is None, reason="TensorFlow isn't installed: make tensorflow")
def test_deeprecs_names_pass_their_tests_on_tensorflow() -> None:
    assert_tests_pass(Path(__file__).parent)
